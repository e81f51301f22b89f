// SPDX-License-Identifier: MIT
// Data parallelism, as PyTorch's DDP: each rank stores all state; the ranks average gradients.
#pragma once
#include "card.hpp"
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::distributed_adam;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) model_.initialise(params_.layer(l));
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
    return {params_.layer(l), momentum_.layer(l), variance_.layer(l)};  // params_ are the weights
  }
  void synchronise() { compute_.synchronise(); }

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) model_.forward(l, params_.layer(l));
    model_.loss(sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::overwrite : Write::add;
    const bool last = micro + 1 == options_.accumulate;
    for (int l = layout_.layers(); l-- > 0;) {
      model_.backward(l, params_.layer(l), grads_.layer(l), write);
      if (last) comm_.all_reduce_mean(compute_, grads_.layer(l));
    }
  }

  StepResult update() {
    const PhaseScope phase(Phase::update);
    for (int l = 0; l < layout_.layers(); ++l) {
      divide(compute_, grads_.layer(l), options_.accumulate);
      squared_norm(compute_, grads_.shard(l), sums_);
    }
    const StepResult result = step_result({.totals = comm_.await_all_reduced(compute_, sums_),
                                           .micro_batches = options_.accumulate,
                                           .ranks = comm_.size,
                                           .clip = options_.clip});
    if (result.skipped) return result;
    adam_.begin(result.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      adam_.update(adam_state(l), grads_.layer(l));
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
  Sums sums_{device_};
  Replicated params_{device_, layout_, State::parameters, Dtype::fp32};
  Replicated grads_{device_, layout_, State::gradients, Dtype::fp32};
  Replicated momentum_{device_, layout_, State::momentum, Dtype::fp32};
  Replicated variance_{device_, layout_, State::variance, Dtype::fp32};
};
}  // namespace zero
