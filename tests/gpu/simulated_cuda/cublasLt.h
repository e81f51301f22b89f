// SPDX-License-Identifier: MIT
// Stands in for the CUDA toolkit's header of this name: matrix products on the simulated GPU.
#pragma once
#include <cstdint>

#include "cuda_runtime.h"

using cublasLtHandle_t = struct cublasLtContext*;

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, CUBLASLT_REDUCTION_SCHEME_MASK = 7 };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_RELU = 2,
  CUBLASLT_EPILOGUE_BIAS = 4
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
  CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

/// A matrix that lies in memory column by column. leading: elements between starts of columns.
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  std::int64_t rows, columns, leading;
  std::int64_t count = 1, apart = 0;  // of a batch: matrices, and elements between their starts
  bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
// data[attribute] is the attribute's value, in its first bytes.
struct cublasLtMatmulDescOpaque_t {
  std::uint64_t data[32];
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t data[16];
};
/// The product and matrices for which an algorithm was chosen, and the limits that it relies on.
struct cublasLtMatmulAlgo_t {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t layouts[4];
  cublasLtMatmulPreferenceOpaque_t preference;
  bool in_halves;  // adds up the second half of the terms first: another order
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  cublasStatus_t state;
};
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

// The real library exports these; its header wraps ..._internal, adding the size of an object.
const char* cublasLtGetStatusString(cublasStatus_t);
cublasStatus_t cublasLtCreate(cublasLtHandle_t*);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t);
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t, std::size_t,
                                               cublasComputeType_t, cudaDataType);
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t, std::size_t, cudaDataType,
                                                 std::uint64_t rows, std::uint64_t columns,
                                                 std::int64_t leading);
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t, std::size_t);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, std::size_t);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t,
                                                cublasLtMatrixLayoutAttribute_t, const void*,
                                                std::size_t);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t);
/// Chooses the order in_halves for small products. Also if SM_COUNT_TARGET is set, as the real
/// library may, so that a test sees if one of two products sets it. An algorithm keeps its order.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* count);
/// D = epilogue(op(A) op(B)), rounded once: alpha is 1 and beta 0, as the project uses it.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t, const void* b,
                              cublasLtMatrixLayout_t, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void* workspace, std::size_t bytes,
                              cudaStream_t);
