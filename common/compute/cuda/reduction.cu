// SPDX-License-Identifier: MIT
#include "compute/cuda/block_sum.cuh"
#include "compute/cuda/cuda_kernels.hpp"

namespace zero::cuda {

namespace {

template <class T>
struct DivideBody {
  using Element = T;

  T* values;
  float divisor;

  template <int width>
  __device__ void at(std::int64_t i) const {
    Pack<T, width> x = load<width>(values, i);
    for (int k = 0; k < width; ++k) x.at[k] = narrow<T>(widen(x.at[k]) / divisor);
    save<width>(values, i, x);
  }
};

template <class T>
struct SquareBody {
  using Element = T;

  const T* values;

  template <int width>
  __device__ double at(std::int64_t i) const {
    const Pack<T, width> x = load<width>(values, i);
    double sum = 0;
    for (int k = 0; k < width; ++k) {
      const double value = widen(x.at[k]);
      sum += value * value;
    }
    return sum;
  }
};

template <class T>
struct OrderedMeanBody {
  using Element = T;

  const T* own;
  const T* received;  // the other ranks' parts, `part` elements each
  T* shard;
  std::int64_t part;
  int rank;
  int ranks;
  Write write;

  __device__ const T* of(int r) const {
    return r == rank ? own : received + (r < rank ? r : r - 1) * part;
  }

  template <int width>
  __device__ void at(std::int64_t i) const {
    const Pack<T, width> first = load<width>(of(0), i);
    Pack<float, width> sum;
    for (int k = 0; k < width; ++k) sum.at[k] = widen(first.at[k]);
    for (int r = 1; r < ranks; ++r) {
      const Pack<T, width> next = load<width>(of(r), i);
      for (int k = 0; k < width; ++k) sum.at[k] += widen(next.at[k]);
    }
    Pack<T, width> to{};
    if (write == Write::add) to = load<width>(shard, i);
    for (int k = 0; k < width; ++k) store(to.at[k], sum.at[k] / static_cast<float>(ranks), write);
    save<width>(shard, i, to);
  }
};

}  // namespace

void CudaKernels::divide(View values, int divisor) {
  with_type(values.dtype, [&]<class T>(T) {
    const DivideBody<T> body{elements<T>(values), static_cast<float>(divisor)};
    each(stream(), values.size, aligned(body.values), body);
  });
}

void CudaKernels::squared_norm(View values, Sums& sums) {
  SumsOnGpu* to = on_gpu(sums);
  with_type(values.dtype, [&]<class T>(T) {
    const SquareBody<T> body{elements<T>(values)};
    add_sum(stream(), values.size, aligned(body.values), body, &to->squares, to->partial, 1);
  });
}

void CudaKernels::ordered_mean(View own, int rank, View received, View shard, Write write) {
  with_type(shard.dtype, [&]<class T>(T) {
    const OrderedMeanBody<T> body{elements<T>(own),
                                  elements<T>(received),
                                  elements<T>(shard),
                                  shard.size,
                                  rank,
                                  static_cast<int>(received.size / shard.size) + 1,
                                  write};
    // Every part of `received` is aligned when the first one is and their size is whole packs.
    const bool parts = body.ranks == 1 || shard.size % wide<T> == 0;
    each(stream(), shard.size, parts && aligned(body.own, body.received, body.shard), body);
  });
}

}  // namespace zero::cuda
