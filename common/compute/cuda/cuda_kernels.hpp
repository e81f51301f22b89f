// SPDX-License-Identifier: MIT
// A GPU's kernels: each call queues its work on one CUDA stream and returns. What launches
// kernels is defined in kernels.cu, the rest in runtime.cpp.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <optional>

#include "compute/element_wise.hpp"
#include "memory/error.hpp"

namespace zero::cuda {
/// Throws Error (resources) with CUDA's own words when `code` is not cudaSuccess.
void check_cuda(cudaError_t code, std::source_location where = std::source_location::current());

/// What lies in a GPU's memory behind Sums: the totals are formed when they are fetched.
struct SumsOnGpu {
  static SumsOnGpu& of(Sums& sums) { return *reinterpret_cast<SumsOnGpu*>(sums.on_gpu.data()); }

  Totals partial[most_partial_sums / 2];  // block b's part of all calls since they were cleared
  Totals totals;
};
static_assert(sizeof(SumsOnGpu) == gpu_sums_bytes);

class CudaKernels : public ElementWise<CudaKernels> {
 public:
  explicit CudaKernels(bool urgent);
  ~CudaKernels() override;

  void bind_thread() override;
  Mark record() override;
  Mark record_time() override;
  void wait(const Mark& mark) override;
  void* queue() override { return stream(); }

  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override;

  void text_samples(const TextSource& source, std::int64_t first, View inputs,
                    View targets) override;
  void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                       View targets) override;

  void reserve_products(std::int64_t room) override;
  void linear_forward(const LinearShape& shape, View x, View params, View y, bool relu) override;
  void linear_backward_params(const LinearShape& shape, View dy, View x, View grads,
                              Write write) override;
  void linear_backward_input(const LinearShape& shape, View dy, View params, View x, View dx,
                             bool relu) override;
  void cross_entropy(View outputs, View targets, std::int64_t rows, float scale, View delta,
                     Sums& sums) override;

  void clear(Sums& sums) override;
  void fetch(Sums& sums) override;
  void ordered_mean(View own, int rank, View received, View shard, Write write) override;

  // ---- For ElementWise and the definitions of the above; launch.cuh, which runtime.cpp does not
  // see: so nothing there may call an operation of ElementWise ----
  template <class T> static T* elements(View view) {
    expect(view.device == Device::cuda, "a GPU's kernels take a GPU's memory");
    return reinterpret_cast<T*>(view.data);
  }
  template <class Body, class... Operands>
  void each(std::int64_t count, const Body& body, const Operands&... operands);
  template <class Body, class... Operands>
  void add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
               const Body& body, const Operands&... operands);

 private:
  /// Queues kernel(arguments ...) on so many blocks.
  template <class... Parameters, class... Arguments>
  void launch(dim3 blocks, void (*kernel)(Parameters...), const Arguments&... arguments);
  /// product (rows x columns, row-major) = a (rows x inner) times b, summed in fp32, rounded once.
  void multiply(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
                std::int64_t columns, View product);

  /// For whoever puts work on it: only so does record() know that there is some.
  cudaStream_t stream() {
    idle_ = false;
    return stream_;
  }

  int gpu_ = 0;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  std::optional<Buffer> blas_workspace_, product_room_;
  HostBuffer fetched_{Device::cuda, sizeof(Totals)};  // the two sums, where the host reads them
  bool idle_ = true;  // the host has waited for all that was queued
};

/// Multiprocessors that matrix products leave to the ranks' messages, and at most so many blocks of
/// NCCL's at once: a product's blocks stay where they are to its end, and a block of NCCL's is as
/// large as a multiprocessor.
constexpr int message_blocks = 16;
inline bool other_ranks = false;  // there are some to leave room for
}  // namespace zero::cuda

extern template class zero::ElementWise<zero::cuda::CudaKernels>;
