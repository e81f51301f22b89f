// SPDX-License-Identifier: MIT
// How kernels are launched, and how a body is applied: neighbouring threads take neighbouring
// packs of elements, 16 bytes of the widest operand, wherever all memory is aligned for that.
#pragma once
#include <algorithm>
#include <cstdint>

#include "compute/cuda/check.hpp"
#include "compute/cuda/cuda_kernels.hpp"
#include "compute/element_wise.hpp"

namespace zero::cuda {
inline constexpr int threads = 256;

template <class... Parameters, class... Arguments>
void CudaKernels::launch(dim3 blocks, void (*kernel)(Parameters...),
                         const Arguments&... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = blocks;
  configuration.blockDim = dim3(threads);
  configuration.stream = stream();
  check_cuda(cudaLaunchKernelEx(&configuration, kernel, Parameters(arguments)...));
}

/// `width` neighbours, read and written at once.
template <class T, int width> struct alignas(sizeof(T) * width) Pack { T at[width]; };

template <int width, class T> bool has_packs(const T* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % sizeof(Pack<T, width>) == 0;
}

template <int width, class T> __device__ Pack<T, width> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, width>*>(from);
}

// What an operand is to the kernels below: aligned, load and save. A .cu file may have operands of
// its own, which are only read: a body sees what their load returns.

template <int width, class Operand> bool aligned(const Operand& x) {
  return has_packs<width>(x.at);
}

template <int width, class Operand> __device__ auto load(const Operand& x, std::int64_t i) {
  if constexpr (Operand::read) {
    return load_pack<width>(x.at + i);
  } else {
    return Pack<typename Operand::Element, width>();
  }
}

template <class Operand, class T, int width>
__device__ void save(const Operand& x, std::int64_t i, const Pack<T, width>& pack) {
  if constexpr (Operand::written) *reinterpret_cast<Pack<T, width>*>(x.at + i) = pack;
}

/// Elements a pack.
template <class... Operands>
inline constexpr int width_of = 16 / std::max({sizeof(typename Operands::Element)...});

/// visit(element's number, its value in each operand) for elements [i, i + width).
template <int width, class Visit, class... Operands>
__device__ void visit_pack(std::int64_t i, const Visit& visit, const Operands&... operands) {
  const auto between = [&](auto... packs) {
    for (int k = 0; k < width; ++k) visit(i + k, packs.at[k]...);
    (save(operands, i, packs), ...);
  };
  between(load<width>(operands, i)...);
}

/// Of `packs` whole packs and the elements behind them: the pack or the element of that number.
template <class Visit, class... Operands>
__device__ void visit_item(std::int64_t item, std::int64_t packs, const Visit& visit,
                           const Operands&... operands) {
  constexpr int width = width_of<Operands...>;
  if (item < packs) {
    visit_pack<width>(item * width, visit, operands...);
  } else {
    visit_pack<1>(item + packs * (width - 1), visit, operands...);
  }
}

/// How many packs `count` elements of the operands are, and how many packs and elements behind
/// them.
struct Items {
  template <class... Operands> explicit Items(std::int64_t count, const Operands&... operands) {
    constexpr int width = width_of<Operands...>;
    packs = (aligned<width>(operands) && ...) ? count / width : 0;
    all = count - packs * (width - 1);
  }
  unsigned blocks() const { return static_cast<unsigned>((all + threads - 1) / threads); }

  std::int64_t packs, all;
};

template <class Body, class... Operands>
__global__ void each_kernel(Items items, Body body, Operands... operands) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (item < items.all) visit_item(item, items.packs, body, operands...);
}

template <class Body, class... Operands>
void CudaKernels::each(std::int64_t count, const Body& body, const Operands&... operands) {
  const Items items(count, operands...);
  if (items.all == 0) return;
  launch(dim3(items.blocks()), each_kernel<Body, Operands...>, items, body, operands...);
}
}  // namespace zero::cuda
