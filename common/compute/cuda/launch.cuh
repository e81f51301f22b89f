// SPDX-License-Identifier: MIT
// Launches kernels and applies bodies. Neighbouring threads take neighbouring packs: 16 bytes of
// the widest operand, or elements if one is unaligned. Sums have a fixed order, without atomics.
#pragma once
#include "compute/cuda/runtime.hpp"
#include "compute/element_wise.hpp"

namespace zero::cuda {
inline constexpr int threads = 256;  // of a block
inline constexpr std::int64_t most_blocks = 1024;  // blocks of a sum; each has a partial sum
static_assert(most_blocks <= most_partial_sums / 2);

/// Returns how many blocks `count` elements need, if a block takes of_a_block of them.
inline unsigned blocks_for(std::int64_t count, std::int64_t of_a_block = threads) {
  return static_cast<unsigned>((count + of_a_block - 1) / of_a_block);
}

/// Queues kernel(arguments ...) on `blocks` blocks.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, dim3 blocks, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = blocks;
  configuration.blockDim = dim3(threads);
  configuration.stream = stream;
  check_cuda(cudaLaunchKernelEx(&configuration, kernel, Parameters(arguments)...));
}

/// `width` neighbouring elements, which one instruction reads or writes.
template <class T, int width> struct alignas(sizeof(T) * width) Pack { T at[width]; };

template <int width, class Operand> bool aligned(const Operand& x) {
  using Packed = Pack<typename Operand::Element, width>;
  return reinterpret_cast<std::uintptr_t>(x.at) % sizeof(Packed) == 0;
}

template <int width, class Operand> __device__ auto load(const Operand& x, std::int64_t i) {
  using Packed = Pack<typename Operand::Element, width>;
  return Operand::read ? *reinterpret_cast<const Packed*>(x.at + i) : Packed();
}

/// Indexes packs, because nvcc does not always make one store if elements are indexed.
template <class Operand, class T, int width>
__device__ void save(const Operand& x, std::int64_t i, const Pack<T, width>& pack) {
  if constexpr (Operand::written) reinterpret_cast<Pack<T, width>*>(x.at)[i / width] = pack;
}

/// Calls visit(element's number, its value in each operand) for elements [i, i + width).
template <int width, class Visit, class... Operands>
__device__ void visit_pack(std::int64_t i, const Visit& visit, const Operands&... operands) {
  const auto between = [&](auto... packs) {
    for (int k = 0; k < width; ++k) visit(i + k, packs.at[k]...);
    (save(operands, i, packs), ...);
  };
  between(load<width>(operands, i)...);
}

/// `count` elements of each operand as items: whole packs, then single elements behind the packs.
template <class... Operands> struct Items {
  static constexpr int width = 16 / std::max({sizeof(typename Operands::Element)...});

  Items(std::int64_t count, const Operands&... operands)
      : packs((aligned<width>(operands) && ...) ? count / width : 0),
        all(count - packs * (width - 1)) {}

  template <class Visit>
  __device__ void visit(std::int64_t item, const Visit& visit, const Operands&... operands) const {
    if (item < packs) {
      visit_pack<width>(item * width, visit, operands...);
    } else {
      visit_pack<1>(item + packs * (width - 1), visit, operands...);
    }
  }

  std::int64_t packs, all;  // numbers of packs, and of all items
};

template <class Body, class... Operands>
__global__ void each_kernel(Items<Operands...> items, Body body, Operands... operands) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (item < items.all) items.visit(item, body, operands...);
}

/// Combines the values of a block's threads, which must all call it: i with i + 128, i + 64, ...
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

template <class Value> __device__ Value block_sum(Value mine) {
  return combine_block(mine, [](Value a, Value b) { return a + b; });
}

/// Each block adds its terms' sum / divisor to its own partial sum. These lie a Totals apart.
template <class Body, class... Operands>
__global__ void add_partial_sums(Items<Operands...> items, double* partial, double divisor,
                                 Body body, Operands... operands) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  double mine = 0;
  for (std::int64_t item = first; item < items.all; item += gridDim.x * threads) {
    double sum = 0;
    const auto add = [&](std::int64_t i, auto&... x) { sum += body(i, x...); };
    items.visit(item, add, operands...);
    mine += sum;
  }
  const double all = block_sum(mine);
  if (threadIdx.x == 0) partial[blockIdx.x * sizeof(Totals) / sizeof(double)] += all / divisor;
}
}  // namespace zero::cuda
