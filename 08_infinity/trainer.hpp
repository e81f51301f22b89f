// SPDX-License-Identifier: MIT
// ZeRO-Infinity (arXiv:2104.07857): the host and its disk store all state, the device none.
#pragma once
#include "06_zero3/layer_window.hpp"
#include "card.hpp"
#include "common.hpp"
#include "host_window.hpp"
#include "state_window.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::infinity;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(params_.shard(l));
      window_.mark_ready(l, compute_.record());
    }
    states_.initialise(model_, compute_);
  }

  StepResult step(const Data& data, int number) {
    clear(compute_, sums_);
    states_.read_ahead();
    for (int micro = 0; micro < options_.accumulate; ++micro) {
      forward(data(number, micro));
      backward(micro);
    }
    return update();
  }

  /// Returns this rank's Adam state of layer l. Call synchronise() before the host reads it.
  AdamState adam_state(int l) {
    const View weights = master_ ? master_->shard(l) : params_.shard(l);
    return {weights, momentum_.shard(l), variance_.shard(l), params_.shard(l)};
  }
  void synchronise() { window_.synchronise(), states_.synchronise(); }

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, window_.unshard(l));
      window_.reshard(l);
    }
    model_.loss(sums_, loss_scale_.value());
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::overwrite : Write::add;
    const bool last = micro + 1 == options_.accumulate;
    for (int l = layout_.layers(); l-- > 0;) {
      const View layer_grads = window_.borrow_grads(l);
      model_.backward(l, window_.unshard(l), layer_grads, Write::overwrite);
      window_.reshard(l);
      const Event reduced = window_.reduce_scatter_mean(layer_grads, grads_.shard(l), write);
      if (last) host_.divide_and_square(grads_.shard(l), options_.accumulate, reduced);
    }
  }

  StepResult update() {
    const PhaseScope phase(Phase::update);
    window_.wait_for_gradients();
    host_.add_squares(compute_, sums_);
    const StepResult result = step_result({.totals = comm_.await_all_reduced(compute_, sums_),
                                           .micro_batches = options_.accumulate,
                                           .ranks = comm_.size,
                                           .loss_scale = loss_scale_.value(),
                                           .clip = options_.clip});
    loss_scale_.update(result.skipped);  // `result` was computed with the old scale
    if (result.skipped) return result;
    adam_.begin(result.grad_factor);
    for (const Piece& piece : states_.pieces()) {
      adam_.update(states_.take(piece, piece.of(params_)), piece.of(grads_));
      window_.mark_ready(piece.layer, states_.put_back(piece));
    }
    return result;
  }

  const Options& options_;
  Device& device_;
  const Layout& layout_;
  Communicator& comm_;
  Stream compute_{"compute", device_, Stream::Mode::asynchronous};
  HostCores host_{device_.host(), layout_};
  Model model_{options_, compute_};
  Adam adam_{options_, host_.stream()};
  LossScale loss_scale_{options_};
  Sums sums_{device_};
  Sharded params_{device_.host(), layout_, State::parameters, options_.dtype, for_copies(options_)};
  Sharded grads_{device_.host(), layout_, State::gradients, options_.dtype, for_copies(options_)};
  Optional<Sharded> master_{needs_master(options_.dtype), device_.at(options_.state), layout_,
                            State::master};
  Sharded momentum_{device_.at(options_.state), layout_, State::momentum, Dtype::fp32};
  Sharded variance_{device_.at(options_.state), layout_, State::variance, Dtype::fp32};
  StateWindow states_{card, options_, layout_, host_.stream(), master_, momentum_, variance_};
  HostWindow window_{card, options_, layout_, comm_, compute_, params_, host_.stream()};
};
}  // namespace zero
