// SPDX-License-Identifier: MIT
// Which instructions the CPU's kernels are made of: the widest vectors that this machine has. The
// bits are the same with all of them.
#pragma once
#include <vector>

#include "compute/cpu/micro_kernel.hpp"

namespace zero {
/// Those that this machine can run, the widest first.
std::vector<const MicroKernel*> micro_kernels();
/// The one that the environment variable ZERO_VECTORS names, else the widest. Throws Error (usage)
/// when this machine does not have it.
const MicroKernel& micro_kernel();

/// An element-wise loop. Its multiplications and additions are never contracted.
template <class Loop> void on_wide_vectors(const Loop& loop);

#ifdef __x86_64__
template <class Loop> [[gnu::target("avx2"), gnu::flatten]] void with_avx2(const Loop& loop) {
  loop();
}

template <class Loop> void on_wide_vectors(const Loop& loop) {
  static const bool wide = &micro_kernel() != &plain;
  wide ? with_avx2(loop) : loop();
}
#else
template <class Loop> void on_wide_vectors(const Loop& loop) { loop(); }
#endif
}  // namespace zero
