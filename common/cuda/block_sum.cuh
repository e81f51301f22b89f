// SPDX-License-Identifier: MIT
// Sums over many blocks in a fixed order, without atomics: the same bits in every run.
#pragma once
#include "kernels.hpp"
#include "launch.cuh"

namespace zero::cuda {

/// Most partial sums, one a block.
inline constexpr unsigned most_blocks = 1024;

inline unsigned blocks_for(std::int64_t items) {
  const std::int64_t wanted = (items + threads - 1) / threads;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most_blocks ? wanted : most_blocks);
}

/// What lies in a GPU's memory behind Sums.
struct SumsOnGpu {
  double loss, squares;
  double partial[2 * 4096];
};
static_assert(sizeof(SumsOnGpu) == gpu_sums_bytes);

inline SumsOnGpu* on_gpu(Sums& sums) {
  return reinterpret_cast<SumsOnGpu*>(sums.on_gpu.data());
}

/// combine() of all threads' values, by halves: thread i with thread i + 128, 64, ... Returned to
/// every thread. All threads of the block must call it.
template <class Value, class Combine>
__device__ Value combine_block(Value mine, Combine combine) {
  __shared__ Value values[threads];
  values[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const Value all = values[0];
  __syncthreads();  // the next call writes there
  return all;
}

struct Plus {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};

template <class Value>
__device__ Value block_sum(Value mine) {
  return combine_block(mine, Plus());
}

/// *to += (sum of `count` partial sums) / divisor. One block.
static __global__ void add_partial_sums(double* to,
                                        const double* partial,
                                        unsigned count,
                                        double divisor) {
  double mine = 0;
  for (unsigned i = threadIdx.x; i < count; i += threads) mine += partial[i];
  const double all = block_sum(mine);
  if (threadIdx.x == 0) *to += all / divisor;
}

}  // namespace zero::cuda
