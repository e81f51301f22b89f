// SPDX-License-Identifier: MIT
// ZeRO-1 (arXiv:1910.02054): each rank stores and updates one shard of the optimizer state.
#pragma once
#include "card.hpp"
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::zero1;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(params_.layer(l));
      if (master_) model_.initialise(master_->shard(l));  // the same values, not rounded to 16 bits
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
  void synchronise() { compute_.synchronise(); }

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) model_.forward(l, params_.layer(l));
    model_.loss(sums_, loss_scale_.value());
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::overwrite : Write::add;
    const bool last = micro + 1 == options_.accumulate;
    for (int l = layout_.layers(); l-- > 0;) {
      model_.backward(l, params_.layer(l), grads_.layer(l), write);
      if (last) comm_.reduce_scatter_mean(compute_, grads_.layer(l), grads_.shard(l));
    }
  }

  StepResult update() {
    const PhaseScope phase(Phase::update);
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
      comm_.all_gather(compute_, params_.shard(l), params_.layer(l));
    }
    return result;
  }

  const Options& options_;
  Device& device_;
  const Layout& layout_;
  Communicator& comm_;
  Stream compute_{"compute", device_};
  Model model_{options_, compute_};
  Adam adam_{options_, compute_};
  LossScale loss_scale_{options_};
  Sums sums_{device_};
  Replicated params_{device_, layout_, State::parameters, options_.dtype};
  Replicated grads_{device_, layout_, State::gradients, options_.dtype};
  Optional<Sharded> master_{needs_master(options_.dtype), device_, layout_, State::master};
  Sharded momentum_{device_, layout_, State::momentum, Dtype::fp32};
  Sharded variance_{device_, layout_, State::variance, Dtype::fp32};
};
}  // namespace zero
