// SPDX-License-Identifier: MIT
// The two sums of a step: of losses, and of squares of gradients.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// Bytes in a GPU's memory behind Sums: the two sums, and room for so many blocks' partial sums.
inline constexpr std::int64_t most_partial_sums = 8192;
inline constexpr std::int64_t gpu_sums_bytes = 8 * (2 + most_partial_sums);

/// Two sums of a step: what its result is formed of.
struct Totals {
  double loss = 0;  // of the micro-batches' mean losses
  double squares = 0;  // of gradients, scaled as they are
};

/// One rank's two sums. On a GPU they grow in its memory until fetch().
struct Sums {
  explicit Sums(Device& device)
      : on_gpu(device, Kind::workspace, device.type == DeviceType::cuda ? gpu_sums_bytes : 0,
               true) {}

  Totals totals;
  double squares_on_host = 0;  // of gradients that the host's cores look after
  Buffer on_gpu;
};
}  // namespace zero
