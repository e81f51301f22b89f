// SPDX-License-Identifier: MIT
// A GPU's kernels: each call queues its work on one CUDA stream and returns. Their definitions lie
// beside this file, by what they are for.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "compute/kernels.hpp"

namespace zero::cuda {

class CudaKernels : public Kernels {
 public:
  explicit CudaKernels(int gpu);
  ~CudaKernels() override;

  void bind_thread() override;
  Mark record() override;
  void wait(const Mark& mark) override;
  void finish() override;
  void* queue() override { return stream(); }

  void copy(View from, View to) override;
  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override;

  void text_samples(const TextSource& source,
                    std::int64_t first,
                    View inputs,
                    View targets) override;
  void teacher_samples(const TeacherSource& source,
                       std::int64_t first,
                       View inputs,
                       View targets) override;

  void initialise(View part,
                  const Generator& random,
                  std::uint64_t number,
                  std::int64_t weights,
                  float scale) override;
  void linear_forward(
      const LinearShape& shape, View x, View params, View y, bool relu, View panel) override;
  void linear_backward_params(
      const LinearShape& shape, View dy, View x, View grads, Write write, View panel) override;
  void linear_backward_input(const LinearShape& shape,
                             View dy,
                             View params,
                             View x,
                             View dx,
                             bool relu,
                             View panel) override;
  void cross_entropy(
      View outputs, View targets, std::int64_t rows, float scale, View delta, Sums& sums) override;
  void squared_error(View outputs, View targets, float scale, View delta, Sums& sums) override;

  void clear(Sums& sums) override;
  void fetch(Sums& sums) override;
  void divide(View values, int divisor) override;
  void squared_norm(View values, Sums& sums) override;
  void ordered_mean(View own, int rank, View received, View shard, Write write) override;

  void adam(const AdamScalars& scalars, const AdamSlice& slice, View grads, View params) override;

 private:
  /// A row-major matrix in memory, read as it is or transposed.
  struct Matrix {
    View elements;
    std::int64_t columns;  // as stored: the distance between rows
    bool transposed = false;
  };
  /// product (rows x columns, row-major) = a (rows x inner) times b, summed in fp32, rounded once.
  void multiply(const Matrix& a,
                const Matrix& b,
                std::int64_t rows,
                std::int64_t inner,
                std::int64_t columns,
                View product,
                View panel);
  /// bias = column sums of dy (batch x outputs), stored or added. partial: the panel's block.
  void column_sum(const LinearShape& shape, View dy, View bias, Write write, View partial);

  /// For whoever puts work on it: only so does record() know that there is some.
  cudaStream_t stream() {
    idle_ = false;
    return stream_;
  }

  int gpu_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  const std::byte* blas_workspace_ = nullptr;
  HostBuffer fetched_;  // the two sums, where the host reads them
  bool idle_ = true;  // the host has waited for all that was queued
};

/// The panel's two parts.
constexpr std::int64_t blas_workspace_bytes = std::int64_t{32} << 20;
inline View product_block(View panel) {
  const std::int64_t workspace = blas_workspace_bytes / bytes_of(Dtype::fp32);
  return panel.part(workspace, panel.size - workspace);
}

}  // namespace zero::cuda
