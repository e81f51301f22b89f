// SPDX-License-Identifier: MIT
// Sums over many blocks in a fixed order, without atomics: the same bits in every run.
#pragma once
#include "compute/cuda/launch.cuh"
#include "compute/kernels.hpp"

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
  double partial[2 * most_gpu_ranks];
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

/// Partial sums, one a block, of body.at<width>(i), a double for elements [i, i + width).
template <class Body>
__global__ void partial_sums(std::int64_t packs, std::int64_t count, Body body, double* partial) {
  constexpr int width = wide<typename Body::Element>;
  const std::int64_t items = count - packs * (width - 1);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  double mine = 0;
  for (std::int64_t item = global_thread(); item < items; item += stride) {
    mine += item < packs ? body.template at<width>(item * width)
                         : body.template at<1>(item + packs * (width - 1));
  }
  const double all = block_sum(mine);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
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

/// *to += (sum over all elements of what body.at returns) / divisor. Else like each().
template <class Body>
void add_sum(cudaStream_t stream,
             std::int64_t count,
             bool is_aligned,
             const Body& body,
             double* to,
             double* partial,
             double divisor) {
  constexpr int width = wide<typename Body::Element>;
  const std::int64_t packs = is_aligned ? count / width : 0;
  const unsigned blocks = blocks_for(count - packs * (width - 1));
  launch(stream, dim3(blocks), partial_sums<Body>, packs, count, body, partial);
  launch(stream, dim3(1), add_partial_sums, to, partial, blocks, divisor);
}

}  // namespace zero::cuda
