// SPDX-License-Identifier: MIT
// The GPU's memory, its streams and its events.
#include <fmt/format.h>

#include "compute/cuda/blas.hpp"
#include "compute/cuda/check.hpp"
#include "compute/cuda/cuda_kernels.hpp"
#include "compute/generator.hpp"
#include "memory/error.hpp"
#include "memory/gpu_memory.hpp"

namespace zero::cuda {

namespace {

int gpu_in_use = 0;

class CudaMark : public DeviceMark {
 public:
  explicit CudaMark(cudaStream_t stream) {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    check_cuda(cudaEventRecord(event_, stream));
  }
  ~CudaMark() override { cudaEventDestroy(event_); }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  bool passed() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state);
    return true;
  }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Numbers that are the same for the same GPU in every process, whatever it is called there.
std::vector<std::uint64_t> identities(int count) {
  std::vector<std::uint64_t> all;
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, number));
    std::uint64_t identity = 0;
    for (const char byte : properties.uuid.bytes) {
      identity = mix(identity ^ static_cast<unsigned char>(byte));
    }
    all.push_back(identity);
  }
  return all;
}

}  // namespace

void check_cuda(cudaError_t code, std::source_location where) {
  if (code == cudaSuccess) return;
  throw Error(ExitCode::resources,
              fmt::format("{}: CUDA error {} ({}): {}",
                          where.function_name(),
                          static_cast<int>(code),
                          cudaGetErrorName(code),
                          cudaGetErrorString(code)));
}

void check_cublas(cublasStatus_t code, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::resources,
              fmt::format("{}: cuBLAS error {}: {}",
                          where.function_name(),
                          static_cast<int>(code),
                          blas().words(code)));
}

Gpus gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return {count, "", identities(count)};
  cudaGetLastError();  // asking may fail; what comes later has not
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return {0, "no GPU: this machine has no driver for one", {}};
  }
  return {0, fmt::format("no GPU: {}", cudaGetErrorString(code)), {}};
}

void use(int number) {
  gpu_in_use = number;
  check_cuda(cudaSetDevice(number));
}

std::string words() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, gpu_in_use));
  return properties.name;
}

Memory memory() {
  std::size_t available = 0, all = 0;
  check_cuda(cudaMemGetInfo(&available, &all));
  return {static_cast<std::int64_t>(all), static_cast<std::int64_t>(available)};
}

/// False when there is no more memory, which is no failure of the device.
static bool given(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // asked for, so that nobody else finds it
    return false;
  }
  check_cuda(code);
  return true;
}

std::byte* allocate(std::int64_t bytes) {
  void* memory = nullptr;
  if (!given(cudaMalloc(&memory, bytes))) return nullptr;
  check_cuda(cudaMemset(memory, 0, bytes));
  check_cuda(cudaDeviceSynchronize());  // streams of ours do not wait for the one it ran on
  return static_cast<std::byte*>(memory);
}

void release(std::byte* memory) noexcept {
  cudaDeviceSynchronize();  // a stream may still use it
  cudaFree(memory);
}

std::byte* allocate_host(std::int64_t bytes) {
  void* memory = nullptr;
  if (!given(cudaMallocHost(&memory, bytes))) return nullptr;
  return static_cast<std::byte*>(memory);
}

void release_host(std::byte* memory) noexcept {
  cudaFreeHost(memory);
}

void copy_now(void* to, const void* from, std::int64_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  // From ordinary memory the call returns when the bytes are on their way, and streams of ours do
  // not wait for them.
  check_cuda(cudaDeviceSynchronize());
}

std::unique_ptr<Kernels> make_kernels() {
  return std::make_unique<CudaKernels>(gpu_in_use);
}

CudaKernels::CudaKernels(int gpu)
    : gpu_(gpu),
      fetched_(Device::cuda, 2 * sizeof(double)) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaKernels::~CudaKernels() {
  cudaStreamSynchronize(stream_);
  if (blas_) blas().destroy(blas_);
  cudaStreamDestroy(stream_);
}

void CudaKernels::bind_thread() {
  check_cuda(cudaSetDevice(gpu_));
}

Mark CudaKernels::record() {
  if (idle_) return nullptr;
  return std::make_shared<CudaMark>(stream_);
}

void CudaKernels::wait(const Mark& mark) {
  if (!mark) return;
  check_cuda(cudaStreamWaitEvent(stream(), static_cast<const CudaMark&>(*mark).event(), 0));
}

void CudaKernels::finish() {
  wait_for(record());
  idle_ = true;
}

void CudaKernels::copy(View from, View to) {
  copy_bytes(to.data, from.data, from.bytes());
}

void CudaKernels::copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
}

void CudaKernels::clear(Sums& sums) {
  check_cuda(cudaMemsetAsync(sums.on_gpu.data(), 0, 2 * sizeof(double), stream()));
}

void CudaKernels::fetch(Sums& sums) {
  copy_bytes(fetched_.data(), sums.on_gpu.data(), fetched_.bytes());
  finish();
  const auto* values = reinterpret_cast<const double*>(fetched_.data());
  sums.totals.loss = values[0];
  sums.totals.squares = values[1];
}

}  // namespace zero::cuda
