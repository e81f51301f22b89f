// SPDX-License-Identifier: MIT
// ZeRO-3 (PyTorch's FSDP2) also shards parameters: each layer is gathered only while it is used.
#pragma once
#include "06_zero3/layer_window.hpp"
#include "card.hpp"
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::zero3;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(params_.shard(l));
      if (master_) model_.initialise(master_->shard(l));  // the same values, not rounded to 16 bits
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
    const View weights = master_ ? master_->shard(l) : params_.shard(l);
    return {weights, momentum_.shard(l), variance_.shard(l), params_.shard(l)};
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
    for (int l = layout_.layers(); l-- > 0;) {
      const View layer_grads = window_.borrow_grads(l);
      model_.backward(l, window_.unshard(l), layer_grads, Write::overwrite);
      window_.reshard(l);
      window_.reduce_scatter_mean(layer_grads, grads_.shard(l), write);
    }
  }

  StepResult update() {
    const PhaseScope phase(Phase::update);
    window_.wait_for_gradients();
    for (int l = 0; l < layout_.layers(); ++l) {
      divide(compute_, grads_.shard(l), options_.accumulate);  // already averaged over the ranks
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
      adam_.update(adam_state(l), grads_.shard(l));
      window_.mark_ready(l, compute_.record());
    }
    return result;
  }

  const Options& options_;
  Device& device_;
  const Layout& layout_;
  Communicator& comm_;
  Stream compute_{"compute", device_, Stream::Mode::asynchronous};
  Model model_{options_, compute_};
  Adam adam_{options_, compute_};
  LossScale loss_scale_{options_};
  Sums sums_{device_};
  Sharded params_{device_, layout_, State::parameters, options_.dtype};
  Sharded grads_{device_, layout_, State::gradients, options_.dtype};
  Optional<Sharded> master_{needs_master(options_.dtype), device_, layout_, State::master};
  Sharded momentum_{device_, layout_, State::momentum, Dtype::fp32};
  Sharded variance_{device_, layout_, State::variance, Dtype::fp32};
  LayerWindow window_{card, options_, layout_, comm_, compute_, params_};  // last: destructor waits
};
}  // namespace zero
