// SPDX-License-Identifier: MIT
#pragma once
#include <chrono>

namespace zero {

/// For tests: how long a rank waits for NCCL before it gives up; five minutes without this.
void set_nccl_patience(std::chrono::milliseconds limit);

}  // namespace zero
