// SPDX-License-Identifier: MIT
// Offload (arXiv:2101.06840): the host stores the optimizer state and runs Adam on it.
#pragma once
#include "06_zero3/layer_window.hpp"
#include "card.hpp"
#include "common.hpp"
#include "offload.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::offload;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(params_.shard(l));
      model_.initialise(master_.shard(l));  // the same values, not rounded to 16 bits
      window_.mark_ready(l, compute_.record());
    }
  }

  StepResult step(const Data& data, int number) {
    clear(compute_, sums_);
    for (int micro = 0; micro < options_.accumulate; ++micro) {
      forward(data(number, micro));
      backward(micro);
    }
    return update();
  }

  /// Returns this rank's Adam state of layer l. Call synchronise() before the host reads it.
  AdamState adam_state(int l) {
    return {master_.shard(l), momentum_.shard(l), variance_.shard(l), offload_.staged_params(l)};
  }
  void synchronise() { window_.synchronise(); }

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
      if (last) offload_.divide_and_copy_to_host(grads_.shard(l), options_.accumulate, reduced);
    }
  }

  StepResult update() {
    const PhaseScope phase(Phase::update);
    window_.wait_for_gradients();
    offload_.wait_for_copies();
    for (int l = 0; l < layout_.layers(); ++l) {
      squared_norm(compute_, grads_.shard(l), sums_);
    }
    const StepResult result = step_result({.totals = comm_.await_all_reduced(compute_, sums_),
                                           .micro_batches = options_.accumulate,
                                           .ranks = comm_.size,
                                           .loss_scale = loss_scale_.value(),
                                           .clip = options_.clip});
    loss_scale_.update(result.skipped);  // `result` was computed with the old scale
    if (result.skipped) return result;
    adam_.begin(result.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      adam_.update(adam_state(l), offload_.staged_grads(l));
      window_.mark_ready(l, offload_.copy_to_device(params_.shard(l)));
    }
    return result;
  }

  const Options& options_;
  Device& device_;
  const Layout& layout_;
  Communicator& comm_;
  Stream compute_{"compute", device_, Stream::Mode::asynchronous};
  Offload offload_{options_, layout_, compute_};
  Model model_{options_, compute_};
  Adam adam_{options_, offload_.host_stream()};
  LossScale loss_scale_{options_};
  Sums sums_{device_};
  Sharded params_{device_, layout_, State::parameters, options_.dtype};
  Sharded grads_{device_, layout_, State::gradients, options_.dtype};
  Sharded master_{device_.host(), layout_, State::master, Dtype::fp32};
  Sharded momentum_{device_.host(), layout_, State::momentum, Dtype::fp32};
  Sharded variance_{device_.host(), layout_, State::variance, Dtype::fp32};
  LayerWindow window_{card, options_, layout_, comm_, compute_, params_};  // last: destructor waits
};
}  // namespace zero
