// SPDX-License-Identifier: MIT
// The functions of cuBLAS that are used. Its library is half a gigabyte, and loading it takes a
// tenth of a second and 200 MB: only a process that multiplies on a GPU does so, when it begins to.
#pragma once
#include <cublas_v2.h>

namespace zero::cuda {
/// cuBLAS has several functions of that name; this is the one for any mixture of types.
using Gemm = cublasStatus_t (*)(cublasHandle_t handle, cublasOperation_t transpose_a,
                                cublasOperation_t transpose_b, int rows, int columns, int inner,
                                const void* alpha, const void* a, cudaDataType type_a, int stride_a,
                                const void* b, cudaDataType type_b, int stride_b, const void* beta,
                                void* product, cudaDataType type_product, int stride_product,
                                cublasComputeType_t sums, cublasGemmAlgo_t algorithm);

struct Blas {
  decltype(&cublasCreate) create;
  decltype(&cublasDestroy) destroy;
  decltype(&cublasSetStream) set_stream;
  decltype(&cublasSetMathMode) set_math_mode;
  decltype(&cublasSetWorkspace) set_workspace;
  decltype(&cublasSetSmCountTarget) set_sm_count_target;
  Gemm gemm;
  decltype(&cublasGetStatusString) words;
};

/// Throws Error (resources) when the library is not there.
const Blas& blas();
}  // namespace zero::cuda
