// SPDX-License-Identifier: MIT
#include "compute/cpu/adam_loop.hpp"

namespace zero {

namespace {

template <class T>
[[gnu::target("avx2"), gnu::flatten]] void avx2_loop(const AdamScalars& scalars,
                                                     const AdamArrays<T>& arrays) {
  adam_loop(scalars, arrays);
}

}  // namespace

template <class T>
bool adam_loop_on_wide_vectors(const AdamScalars& scalars, const AdamArrays<T>& arrays) {
  if (!__builtin_cpu_supports("avx2")) return false;
  avx2_loop(scalars, arrays);
  return true;
}

template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<float>&);
template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<Bf16>&);
template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<Fp16>&);

}  // namespace zero
