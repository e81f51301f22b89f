// SPDX-License-Identifier: MIT
#include "compute/cuda/cuda_kernels.hpp"
#include "compute/cuda/launch.cuh"

namespace zero::cuda {

namespace {

template <class T>
struct AdamBody {
  using Element = T;

  AdamScalars scalars;
  const T* grads;
  float* weights;
  float* momentum;
  float* variance;
  T* params;  // null: the weights are the parameters

  template <int width>
  __device__ void at(std::int64_t i) const {
    const Pack<T, width> g = load<width>(grads, i);
    Pack<float, width> w = load<width>(weights, i);
    Pack<float, width> m = load<width>(momentum, i);
    Pack<float, width> v = load<width>(variance, i);
    for (int k = 0; k < width; ++k) {
      adam_element(scalars, widen(g.at[k]), w.at[k], m.at[k], v.at[k]);
    }
    save<width>(weights, i, w);
    save<width>(momentum, i, m);
    save<width>(variance, i, v);
    if (!params) return;
    Pack<T, width> p;
    for (int k = 0; k < width; ++k) p.at[k] = narrow<T>(w.at[k]);
    save<width>(params, i, p);
  }
};

}  // namespace

void CudaKernels::adam(const AdamScalars& scalars,
                       const AdamSlice& slice,
                       View grads,
                       View params) {
  with_type(grads.dtype, [&]<class T>(T) {
    const bool in_place = params.data == slice.weights.data;
    const AdamBody<T> body{scalars,
                           elements<T>(grads),
                           elements<float>(slice.weights),
                           elements<float>(slice.momentum),
                           elements<float>(slice.variance),
                           in_place ? nullptr : elements<T>(params)};
    const bool packs = aligned(body.grads, body.weights, body.momentum, body.variance, body.params);
    each(stream(), slice.weights.size, packs, body);
  });
}

}  // namespace zero::cuda
