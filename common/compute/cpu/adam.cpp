// SPDX-License-Identifier: MIT
#include "compute/cpu/adam_loop.hpp"
#include "compute/cpu/cpu_kernels.hpp"

namespace zero {

void CpuKernels::adam(const AdamScalars& scalars, const AdamSlice& slice, View grads, View params) {
  with_type(grads.dtype, [&]<class T>(T) {
    const bool in_place = params.data == slice.weights.data;
    const AdamArrays<T> arrays{slice.weights.size,
                               grads.as<T>().data(),
                               slice.weights.as<float>().data(),
                               slice.momentum.as<float>().data(),
                               slice.variance.as<float>().data(),
                               in_place ? nullptr : params.as<T>().data()};
    if (!adam_loop_on_wide_vectors(scalars, arrays)) adam_loop(scalars, arrays);
  });
}

}  // namespace zero
