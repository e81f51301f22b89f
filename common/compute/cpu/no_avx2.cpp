// SPDX-License-Identifier: MIT
#include "compute/cpu/adam_loop.hpp"

namespace zero {

template <class T>
bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<T>&) {
  return false;
}

template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<float>&);
template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<Bf16>&);
template bool adam_loop_on_wide_vectors(const AdamScalars&, const AdamArrays<Fp16>&);

}  // namespace zero
