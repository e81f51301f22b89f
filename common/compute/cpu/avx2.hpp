// SPDX-License-Identifier: MIT
// Wider vectors than every machine of this kind has, where this one has them. The bits are the
// same: only the width differs, and multiplications and additions are never contracted.
#pragma once

namespace zero {
template <class Loop> [[gnu::target("avx2"), gnu::flatten]] void with_avx2(const Loop& loop) {
  loop();
}

template <class Loop> void on_wide_vectors(const Loop& loop) {
  __builtin_cpu_supports("avx2") ? with_avx2(loop) : loop();
}
}  // namespace zero
