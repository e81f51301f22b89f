// SPDX-License-Identifier: MIT
// The one pass over memory, for compilers to turn into vector instructions of whatever width.
#pragma once
#include <cstdint>

#include "compute/adam_element.hpp"
#include "memory/dtype.hpp"

namespace zero {

/// Arrays of `count` elements that do not overlap. `params` is null when the weights are the
/// parameters.
template <class T>
struct AdamArrays {
  std::int64_t count;
  const T* grads;
  float* weights;
  float* momentum;
  float* variance;
  T* params;
};

template <class T>
inline void adam_loop(const AdamScalars& scalars, const AdamArrays<T>& arrays) {
  const AdamScalars s = scalars;
  const std::int64_t count = arrays.count;
  const T* __restrict grads = arrays.grads;
  float* __restrict weights = arrays.weights;
  float* __restrict momentum = arrays.momentum;
  float* __restrict variance = arrays.variance;
  T* __restrict params = arrays.params;
  if (!params) {
    for (std::int64_t i = 0; i < count; ++i) {
      adam_element(s, widen(grads[i]), weights[i], momentum[i], variance[i]);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    adam_element(s, widen(grads[i]), weights[i], momentum[i], variance[i]);
    params[i] = narrow<T>(weights[i]);
  }
}

/// The same loop on wider vectors than every machine of this kind has, where this one has them;
/// false, and nothing done, where not. The bits are the same: only the width differs, and
/// multiplications and additions are never contracted.
template <class T>
bool adam_loop_on_wide_vectors(const AdamScalars& scalars, const AdamArrays<T>& arrays);

}  // namespace zero
