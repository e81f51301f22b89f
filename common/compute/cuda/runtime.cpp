// SPDX-License-Identifier: MIT
// A GPU's streams and events.
#include <fmt/format.h>

#include "compute/cuda/blas.hpp"
#include "compute/cuda/check.hpp"
#include "compute/cuda/cuda_kernels.hpp"
#include "memory/error.hpp"

namespace zero::cuda {
namespace {
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
}  // namespace

void check_cuda(cudaError_t code, std::source_location where) {
  if (code == cudaSuccess) return;
  throw Error(ExitCode::resources, fmt::format("{}: CUDA error {} ({}): {}", where.function_name(),
                                               static_cast<int>(code), cudaGetErrorName(code),
                                               cudaGetErrorString(code)));
}

void check_cublas(cublasStatus_t code, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::resources, fmt::format("{}: cuBLAS error {}: {}", where.function_name(),
                                               static_cast<int>(code), blas().words(code)));
}

std::unique_ptr<Kernels> make_kernels() {
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu));
  return std::make_unique<CudaKernels>(gpu);
}

CudaKernels::CudaKernels(int gpu) : gpu_(gpu), fetched_(Device::cuda, sizeof(Totals)) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaKernels::~CudaKernels() {
  cudaStreamSynchronize(stream_);
  if (blas_) blas().destroy(blas_);
  cudaStreamDestroy(stream_);
}

void CudaKernels::bind_thread() { check_cuda(cudaSetDevice(gpu_)); }

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

void CudaKernels::copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
}

void CudaKernels::clear(Sums& sums) {
  check_cuda(cudaMemsetAsync(sums.on_gpu.data(), 0, sizeof(Totals), stream()));
}

void CudaKernels::fetch(Sums& sums) {
  copy_bytes(fetched_.data(), sums.on_gpu.data(), fetched_.bytes());
  finish();
  sums.totals = *reinterpret_cast<const Totals*>(fetched_.data());
}
}  // namespace zero::cuda
