// SPDX-License-Identifier: MIT
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <source_location>

namespace zero::cuda {
/// Throws Error (resources) with CUDA's own words when `code` is not cudaSuccess.
void check_cuda(cudaError_t code, std::source_location where = std::source_location::current());

/// The same for cuBLAS.
void check_cublas(cublasStatus_t code,
                  std::source_location where = std::source_location::current());
}  // namespace zero::cuda
