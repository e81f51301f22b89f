// SPDX-License-Identifier: MIT
// Which instructions the CPU's kernels are made of: the widest vectors that this machine has. The
// bits are the same with all of them.
#pragma once
#include <vector>

#include "compute/cpu/micro_kernel.hpp"
#include "compute/machine.hpp"

namespace zero {
/// Those that this machine can run, the widest first.
std::vector<const MicroKernel*> micro_kernels();
/// The one that the environment variable ZERO_VECTORS names, else the widest. Throws Error (usage)
/// when this machine does not have it.
const MicroKernel& micro_kernel();

template <class Loop> [[WIDE_LOOP]] void with_wide_vectors(const Loop& loop) { loop(); }

/// For element-wise loops. Their multiplications and additions are never contracted.
template <class Loop> void on_wide_vectors(const Loop& loop) {
  static const bool wide = &micro_kernel() != &plain;
  wide ? with_wide_vectors(loop) : loop();
}
}  // namespace zero
