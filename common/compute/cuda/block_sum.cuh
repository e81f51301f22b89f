// SPDX-License-Identifier: MIT
// Sums over many blocks in a fixed order, without atomics: the same bits in every run.
#pragma once
#include "compute/cuda/launch.cuh"

namespace zero::cuda {
/// Most partial sums, one a block.
inline constexpr std::int64_t most_blocks = 1024;

/// combine() of all threads' values, by halves: thread i with thread i + 128, 64, ... Returned to
/// every thread. All threads of the block must call it.
template <class Value, class Combine> __device__ Value combine_block(Value mine, Combine combine) {
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
  template <class Value> __device__ Value operator()(Value a, Value b) const { return a + b; }
};

template <class Value> __device__ Value block_sum(Value mine) {
  return combine_block(mine, Plus());
}

/// Partial sums, one a block, of the body's terms.
template <class Body, class... Operands>
__global__ void partial_sums(Items items, double* partial, Body body, Operands... operands) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  double mine = 0;
  for (std::int64_t item = first; item < items.all; item += gridDim.x * threads) {
    double sum = 0;
    const auto add = [&](std::int64_t i, auto&... x) { sum += body(i, x...); };
    visit_item(item, items.packs, add, operands...);
    mine += sum;
  }
  const double all = block_sum(mine);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

/// *to += (sum of `count` partial sums) / divisor. One block.
static __global__ void add_partial_sums(double* to, const double* partial, unsigned count,
                                        double divisor) {
  double mine = 0;
  for (unsigned i = threadIdx.x; i < count; i += threads) mine += partial[i];
  const double all = block_sum(mine);
  if (threadIdx.x == 0) *to += all / divisor;
}

template <class Body, class... Operands>
void CudaKernels::add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
                          const Body& body, const Operands&... operands) {
  SumsOnGpu& on_gpu = SumsOnGpu::of(sums);
  const Items items(count, operands...);
  const unsigned blocks = std::clamp<std::int64_t>(items.blocks(), 1, most_blocks);
  const auto kernel = partial_sums<Body, Operands...>;
  launch(dim3(blocks), kernel, items, on_gpu.partial, body, operands...);
  launch(dim3(1), add_partial_sums, &(on_gpu.totals.*total), on_gpu.partial, blocks, divisor);
}
}  // namespace zero::cuda
