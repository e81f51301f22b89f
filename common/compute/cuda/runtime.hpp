// SPDX-License-Identifier: MIT
// This process's GPU: a stream, its events and, by cuBLAS, its products. kernels.cu adds kernels.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <optional>

#include "compute/kernels.hpp"
#include "memory/error.hpp"

namespace zero::cuda {
/// The functions of cublasLt that are used. The first product loads the library, half a gigabyte.
struct Blas {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  // The header's functions without "_internal" are inline, call these three, and only add a size.
  decltype(&cublasLtMatmulDescInit_internal) start_description;
  decltype(&cublasLtMatrixLayoutInit_internal) start_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) start_preference;
  decltype(&cublasLtMatmulDescSetAttribute) describe;
  decltype(&cublasLtMatrixLayoutSetAttribute) lay_out;
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtGetStatusString) status_string;
};
/// Returns cuBLAS's functions. Throws Error (resources) if the library cannot be loaded.
const Blas& blas();

/// Throws Error (resources) with CUDA's own words when `code` is not cudaSuccess.
void check_cuda(cudaError_t code, std::source_location where = std::source_location::current());

struct BothClocks;  // a moment by the GPU's clock and by the host's

class Gpu : public Device {
 public:
  /// others: see make_gpu().
  Gpu(int number, bool others);
  void bind_thread() override { check_cuda(cudaSetDevice(number)); }
  std::byte* allocate(std::int64_t bytes, Memory memory_type) override;
  void release(std::byte* memory, Memory memory_type) noexcept override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  std::int64_t available() const override { return info().first; }
  std::string name() const override;

  const int number;
  std::int32_t multiprocessors = 0;  // that a product may take; 0: all
  /// Returns a moment of the last 10 s: CUDA gives the time since then as a float, inexact if long.
  std::shared_ptr<const BothClocks> both_clocks();

 private:
  static std::pair<std::size_t, std::size_t> info();  // bytes available, and all

  std::mutex mutex_;  // guards clocks_
  std::shared_ptr<const BothClocks> clocks_;
};

/// Queues each call's work on one CUDA stream, and returns.
class Runtime : public Kernels {
 public:
  Runtime(Device& gpu, bool urgent);
  ~Runtime() override;

  DeviceEventPtr record() final;
  DeviceEventPtr record_time(const DeviceEventPtr& begin) final;
  void wait(const DeviceEventPtr& event) final;
  void* queue() final { return stream(); }
  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) final {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  }
  void clear(Sums& sums) final {
    check_cuda(cudaMemsetAsync(sums.on_gpu.data(), 0, gpu_sums_bytes, stream()));
  }
  void reserve_products(std::int64_t room) final;

 protected:
  /// Queues `count` products of a (rows x inner) and b (inner x columns), plus bias (columns; null:
  /// none), through a ReLU if `relu`. One dtype, fp32 sums, rounded once. Throws Error (resources).
  void multiply(std::int64_t count, std::int64_t rows, std::int64_t inner, std::int64_t columns,
                const ConstMatrices& a, const ConstMatrices& b, const Matrices& products,
                const std::byte* bias = nullptr, bool relu = false);
  /// Returns the stream for work that is put on it now. Notes that the stream is no longer idle.
  cudaStream_t stream() {
    idle_ = false;
    return stream_;
  }
  /// Waits until all that was queued is done.
  void finish() {
    wait_for(record());
    idle_ = true;
  }

  Gpu& gpu_;
  std::optional<Buffer> product_room_;
  Buffer fetched_{gpu_.host(), sizeof(Totals)};  // the two sums, where the host reads them

 private:
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t blas_ = nullptr;
  std::map<std::array<std::int64_t, 15>, cublasLtMatmulAlgo_t> algorithms_;  // by sizes, dtype ...
  std::optional<Buffer> blas_workspace_;
  bool idle_ = true;  // whether the host has waited for all that was queued
};
}  // namespace zero::cuda
