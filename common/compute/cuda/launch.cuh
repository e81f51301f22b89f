// SPDX-License-Identifier: MIT
// How kernels are launched, and the one shape that all element-wise kernels have: 16 bytes an
// access wherever the memory's alignment allows it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "compute/cuda/check.hpp"
#include "memory/dtype.hpp"
#include "memory/tensor.hpp"

namespace zero::cuda {

inline constexpr int threads = 256;

/// How many T make 16 bytes: a pack. Neighbouring threads take neighbouring packs.
template <class T>
inline constexpr int wide = 16 / sizeof(T);

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream,
            dim3 blocks,
            void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = blocks;
  configuration.blockDim = dim3(threads);
  configuration.stream = stream;
  check_cuda(cudaLaunchKernelEx(&configuration, kernel, Parameters(arguments)...));
}

/// The view's elements, for kernels. T is the caller's promise about dtype.
template <class T>
T* elements(View view) {
  return reinterpret_cast<T*>(view.data);
}

template <class... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// `width` neighbours; read and written 16 bytes at a time when there are several.
template <class T, int width>
struct alignas(width > 1 ? 16 : alignof(T)) Pack {
  T at[width];
};

template <int width, class T>
__device__ Pack<T, width> load(const T* from, std::int64_t i) {
  return *reinterpret_cast<const Pack<T, width>*>(from + i);
}

template <int width, class T>
__device__ void save(T* to, std::int64_t i, const Pack<T, width>& pack) {
  *reinterpret_cast<Pack<T, width>*>(to + i) = pack;
}

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <class Body>
__global__ void each_kernel(std::int64_t packs, std::int64_t count, Body body) {
  constexpr int width = wide<typename Body::Element>;
  const std::int64_t item = global_thread();
  if (item < packs) {
    body.template at<width>(item * width);
  } else if (item + packs * (width - 1) < count) {
    // Behind the packs, one element a thread: number packs * width + (item - packs).
    body.template at<1>(item + packs * (width - 1));
  }
}

/// body.at<width>(i) handles elements [i, i + width), of which there are `count` in all; width is 1
/// or that of Body::Element. `is_aligned`: all memory that it touches by packs is.
template <class Body>
void each(cudaStream_t stream, std::int64_t count, bool is_aligned, const Body& body) {
  constexpr int width = wide<typename Body::Element>;
  const std::int64_t packs = is_aligned ? count / width : 0;
  const std::int64_t items = count - packs * (width - 1);
  if (items == 0) return;
  const auto blocks = static_cast<unsigned>((items + threads - 1) / threads);
  launch(stream, dim3(blocks), each_kernel<Body>, packs, count, body);
}

}  // namespace zero::cuda
