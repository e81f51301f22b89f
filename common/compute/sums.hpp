// SPDX-License-Identifier: MIT
// The two sums of a step: of losses, and of squares of gradients.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// A Sums has gpu_sums_bytes of a GPU's memory: doubles, for two sums and its blocks' partial sums.
inline constexpr std::int64_t most_partial_sums = 8192;
inline constexpr std::int64_t gpu_sums_bytes = 8 * (2 + most_partial_sums);

/// The two sums of a step, from which step_result() forms the step's result.
struct Totals {
  double loss = 0;  // of the micro-batches' mean losses
  double squares = 0;  // of the squares of the gradients, which still contain the loss scale
};

/// One rank's two sums. A GPU adds them up in its own memory until fetch().
struct Sums {
  explicit Sums(Device& device)
      : on_gpu(device, Kind::workspace, device.type == DeviceType::cuda ? gpu_sums_bytes : 0,
               true) {}

  Totals totals;
  double squares_on_host = 0;  // of gradients on 08's host; await_all_reduced() adds it to squares
  Buffer on_gpu;
};
}  // namespace zero
