// SPDX-License-Identifier: MIT
// Stands in for the CUDA toolkit's header of this name, so that a plain C++ compiler builds the
// CUDA sources and every kernel runs on a machine without a GPU. Only what the project uses is
// here, with the toolkit's names, values and signatures; simulated_cuda.hpp says how faithful it
// is.
#pragma once
#include <math.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "library_types.h"

#define CUDART_VERSION 13000

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// All threads of a block run on one thread of the operating system, one block at a time.
#define __shared__ static thread_local

struct uint3 {
  unsigned int x, y, z;
};

struct dim3 {
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1)
      : x(x),
        y(y),
        z(z) {}
  unsigned int x, y, z;
};

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

void __syncthreads();

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid = {};
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int major;
  int minor;
  int multiProcessorCount;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** place, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** place, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);

template <class T>
cudaError_t cudaMalloc(T** place, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(place), bytes);
}

template <class T>
cudaError_t cudaMallocHost(T** place, std::size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(place), bytes);
}

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

constexpr unsigned int cudaStreamNonBlocking = 1;
constexpr unsigned int cudaEventDefault = 0;
constexpr unsigned int cudaEventDisableTiming = 2;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to,
                            const void* from,
                            std::size_t bytes,
                            cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* memory,
                            int value,
                            std::size_t bytes,
                            cudaStream_t stream = nullptr);

struct cudaLaunchAttribute;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned int numAttrs;
};

namespace simulated {
/// Queues a grid; `thread` is what each of its threads does.
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread);
}  // namespace simulated

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Params...),
                               Args&&... args) {
  // By calling with them, the arguments become the kernel's parameters as implicitly as on a GPU.
  return [&](Params... values) {
    return simulated::launch(*config, [kernel, values...] { kernel(values...); });
  }(std::forward<Args>(args)...);
}
