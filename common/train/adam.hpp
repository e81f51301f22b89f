// SPDX-License-Identifier: MIT
// Adam (arXiv:1412.6980) with decoupled weight decay, on a layer or any part of one.
#pragma once
#include "compute/adam_element.hpp"
#include "compute/stream.hpp"
#include "memory/call_site.hpp"
#include "memory/error.hpp"
#include "memory/tensor.hpp"
#include "train/options.hpp"

namespace zero {
/// Whether Adam updates separate fp32 weights, of which the 16-bit parameters are a rounded copy.
constexpr bool needs_master(Dtype dtype) { return dtype != Dtype::fp32; }

/// Returns the bytes per parameter that Adam keeps: momentum, variance, and any master weight.
constexpr std::int64_t optimizer_bytes(Dtype dtype) { return needs_master(dtype) ? 12 : 8; }

/// Computes the scalars of each step (learning rate, bias corrections) and queues the update.
class Adam {
 public:
  /// Updates run on `stream`, which must outlive this Adam. options.begin.updates were made before.
  Adam(const Options& options, Stream& stream) : options_(options), stream_(stream) {
    for (std::int64_t update = 0; update < options.begin.updates; ++update) count_update();
  }

  /// Call once in each step that is not skipped, before update(). grad_factor: see StepResult.
  void begin(float grad_factor) {
    const double lr = options_.lr, beta1 = options_.beta1, beta2 = options_.beta2;
    count_update();
    scalars_ = {.grad_factor = grad_factor,
                .beta1 = static_cast<float>(beta1),
                .one_minus_beta1 = static_cast<float>(1 - beta1),
                .beta2 = static_cast<float>(beta2),
                .one_minus_beta2 = static_cast<float>(1 - beta2),
                .decay = static_cast<float>(1 - lr * options_.weight_decay),
                .step_size = static_cast<float>(lr / (1 - beta1_to_t_)),
                .inverse_correction = static_cast<float>(1 / std::sqrt(1 - beta2_to_t_)),
                .eps = static_cast<float>(options_.eps)};
  }

  /// Queues the state's update by `grads`, of the same size. Writes the new weights, rounded, to
  /// state.params unless that is empty. params has the gradients' dtype and may be their memory. An
  /// update reads and writes 28 bytes per parameter, or 32 in fp32 with separate master weights.
  void update(const AdamState& state, ConstView grads, CallSite = {}) {
    const std::int64_t count = state.weights.size;
    const View params = state.params;
    expect(state.momentum.size == count && state.variance.size == count && grads.size == count &&
               (params.size == count || params.size == 0),
           "Adam: the state, its gradients and its parameters have the same size");
    expect((params.size == 0 || grads.dtype == params.dtype) && state.weights.dtype == Dtype::fp32,
           "Adam: gradients and parameters have one dtype, the state is fp32");
    std::vector<ConstView> writes{state.weights, state.momentum, state.variance};
    if (params.size > 0) writes.push_back(params);
    stream_.run(
        work_on("adam", {grads}, std::move(writes)),
        [=, &on = stream_.kernels(), scalars = scalars_] { on.adam(scalars, state, grads); });
  }

 private:
  // Multiplies once per update, because the last bit of std::pow depends on the C library.
  void count_update() {
    beta1_to_t_ *= options_.beta1;
    beta2_to_t_ *= options_.beta2;
  }

  const Options options_;
  Stream& stream_;
  double beta1_to_t_ = 1, beta2_to_t_ = 1;
  AdamScalars scalars_{};
};
}  // namespace zero
