// SPDX-License-Identifier: MIT
// Stands in for the CUDA toolkit's header of this name, so that a plain C++ compiler builds the
// CUDA sources and every kernel runs on a machine without a GPU. Only what the project uses is
// here, with the toolkit's names and values.
//
// A stream is a thread with an in-order queue: streams run side by side, and a wait that the
// program forgot is a real race. The default stream, null, works as late as CUDA allows: when
// somebody waits for the device, or for that stream. An allocation that finds too little memory
// returns an error, as on a GPU; misuse, where noticed, ends the process. The environment says:
//   SIMULATED_GPUS           how many devices there are (1)
//   SIMULATED_QUEUE          items that a stream holds (1000): a call that adds one more waits for
//                            room; until then other calls wait for the driver's lock, too
//   SIMULATED_CUDA_DELAY_US  each copy, kernel, ... starts so many microseconds later (0); "0,500":
//                            the first stream created gets 0, the second 500, the third 0, ...
//   SIMULATED_NCCL_BREAKS    the number, from 1, of NCCL's operation that finds its peer gone
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>

#define __global__
#define __device__
// All threads of a block run on one thread of the operating system, one block at a time.
#define __shared__ static thread_local

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
  unsigned x, y;
};

extern constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600 };

inline const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "cudaErrorMemoryAllocation";
  return error == cudaErrorNotReady ? "cudaErrorNotReady" : "cudaSuccess";
}
inline const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }

struct cudaDeviceProp {
  char name[256];
  struct {
    char bytes[16];
  } uuid;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrSingleToDoublePrecisionPerfRatio = 87
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2;

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
/// Waits for what the stream still has to do.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
/// In about half of the calls it returns late, by up to 2 ms.
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

/// At least one side lies on the device. Pinned memory of the host is read and written when
/// the stream gets there. Ordinary memory is read or written before the call returns. Every other
/// read of it waits for the stream first; what was read arrives when the stream gets there.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream);
/// Copies as late as the default stream works, unless to the host or from pinned memory: at once.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
inline cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};

// What the parts of the simulated GPU share.
namespace simulated {
constexpr int multiprocessors = 132;
inline std::atomic<int> message_blocks = 0;  // most blocks of NCCL's; 0 without peers

[[noreturn, gnu::format(printf, 1, 2)]] void die(const char* format, ...);

/// Sets *place to fresh memory of the device or, pinned, of the host; to null for 0 bytes.
cudaError_t allocate(void** place, std::size_t bytes, bool on_host);

/// Runs `work` when the stream has done all that it was given before, and after its delay.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Dies unless the bytes lie in one live allocation of cudaMalloc.
void require_device_memory(const void* memory, std::size_t bytes, const char* what);

/// Queues a grid; `thread` is what each of its threads does.
void launch(const cudaLaunchConfig_t& config, const std::function<void()>& thread);
}  // namespace simulated

template <class T> cudaError_t cudaMalloc(T** place, std::size_t bytes) {
  return simulated::allocate(reinterpret_cast<void**>(place), bytes, false);
}
template <class T> cudaError_t cudaMallocHost(T** place, std::size_t bytes) {
  return simulated::allocate(reinterpret_cast<void**>(place), bytes, true);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               const Args&... args) {
  simulated::launch(*config, [=] { kernel(args...); });
  return cudaSuccess;
}
