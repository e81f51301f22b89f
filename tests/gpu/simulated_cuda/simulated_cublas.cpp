// SPDX-License-Identifier: MIT
// Matrix products of the simulated GPU, by OpenBLAS on fp32 copies. As the operands are read and
// the result is written here and not by OpenBLAS, a race detector sees both.
#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cublas_v2.h"
#include "memory/dtype.hpp"
#include "simulated_cuda.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
  bool has_workspace = false;
};

namespace {
/// A matrix as it lies in memory, column by column.
struct Matrix {
  std::size_t elements() const {
    return std::size_t{static_cast<unsigned>(rows)} * static_cast<unsigned>(columns);
  }
  std::size_t place(int row, int column) const {
    return static_cast<std::size_t>(column) * static_cast<unsigned>(leading) +
           static_cast<unsigned>(row);
  }

  void* data;
  cudaDataType type;
  int rows;
  int columns;
  int leading;
};

/// Calls `visitor` with the data as a pointer to the type it is of.
template <class Visitor>
void with_data(const Matrix& matrix, Visitor&& visitor) {
  switch (matrix.type) {
    case CUDA_R_32F:
      return visitor(static_cast<float*>(matrix.data));
    case CUDA_R_16F:
      return visitor(static_cast<zero::Fp16*>(matrix.data));
    case CUDA_R_16BF:
      return visitor(static_cast<zero::Bf16*>(matrix.data));
  }
}

std::vector<float> load(const Matrix& matrix) {
  std::vector<float> values;
  values.reserve(matrix.elements());
  with_data(matrix, [&](const auto* data) {
    for (int column = 0; column < matrix.columns; ++column) {
      for (int row = 0; row < matrix.rows; ++row) {
        values.push_back(zero::widen(data[matrix.place(row, column)]));
      }
    }
  });
  return values;
}

void save(const Matrix& matrix, const std::vector<float>& values) {
  with_data(matrix, [&]<class T>(T* data) {
    std::size_t next = 0;
    for (int column = 0; column < matrix.columns; ++column) {
      for (int row = 0; row < matrix.rows; ++row) {
        data[matrix.place(row, column)] = zero::narrow<T>(values[next++]);
      }
    }
  });
}

/// C = alpha op(A) op(B) + beta C, each element summed in fp32 and rounded once.
struct Product {
  void run() const {
    const std::vector<float> left = load(a);
    const std::vector<float> right = load(b);
    // Without a beta C is not read: it may hold anything, NaN too.
    std::vector<float> result = beta != 0.0f ? load(c) : std::vector<float>(c.elements());
    const int inner = transa == CUBLAS_OP_N ? a.columns : a.rows;
    cblas_sgemm(CblasColMajor,
                transa == CUBLAS_OP_N ? CblasNoTrans : CblasTrans,
                transb == CUBLAS_OP_N ? CblasNoTrans : CblasTrans,
                c.rows,
                c.columns,
                inner,
                alpha,
                left.data(),
                std::max(1, a.rows),
                right.data(),
                std::max(1, b.rows),
                beta,
                result.data(),
                c.rows);
    save(c, result);
  }

  cublasOperation_t transa;
  cublasOperation_t transb;
  float alpha;
  float beta;
  Matrix a;
  Matrix b;
  Matrix c;
};

bool well_formed(const Matrix& matrix) {
  return matrix.rows >= 0 && matrix.columns >= 0 && matrix.leading >= std::max(1, matrix.rows);
}

bool supported(cudaDataType from, cudaDataType to) {
  const bool known = from == CUDA_R_32F || from == CUDA_R_16F || from == CUDA_R_16BF;
  return known && (to == from || to == CUDA_R_32F);
}

void require_device_memory(const Matrix& matrix, const char* name) {
  if (matrix.elements() == 0) return;
  const std::size_t elements = matrix.place(matrix.rows - 1, matrix.columns - 1) + 1;
  const std::size_t bytes = elements * (matrix.type == CUDA_R_32F ? 4 : 2);
  simulated::require_device_memory(matrix.data, bytes, name);
}
}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown status";
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return cudaDeviceSynchronize() == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  handle->has_workspace = false;  // the real one too falls back to a workspace of its own
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!workspace || bytes == 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  simulated::require_device_memory(workspace, bytes, "cublasSetWorkspace");
  handle->has_workspace = true;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t) {
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;  // all are precise here
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle,
                            cublasOperation_t transa,
                            cublasOperation_t transb,
                            int m,
                            int n,
                            int k,
                            const void* alpha,
                            const void* A,
                            cudaDataType Atype,
                            int lda,
                            const void* B,
                            cudaDataType Btype,
                            int ldb,
                            const void* beta,
                            void* C,
                            cudaDataType Ctype,
                            int ldc,
                            cublasComputeType_t computeType,
                            cublasGemmAlgo_t) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!handle->has_workspace) {
    simulated::die("cublasGemmEx: no workspace was set since the stream was");
  }
  const bool a_upright = transa == CUBLAS_OP_N;
  const bool b_upright = transb == CUBLAS_OP_N;
  const Matrix a{const_cast<void*>(A), Atype, a_upright ? m : k, a_upright ? k : m, lda};
  const Matrix b{const_cast<void*>(B), Btype, b_upright ? k : n, b_upright ? n : k, ldb};
  const Matrix c{C, Ctype, m, n, ldc};
  if (!alpha || !beta || !well_formed(a) || !well_formed(b) || !well_formed(c)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool fp32 = computeType == CUBLAS_COMPUTE_32F || computeType == CUBLAS_COMPUTE_32F_PEDANTIC;
  if (!fp32 || Atype != Btype || !supported(Atype, Ctype)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (c.elements() == 0) return CUBLAS_STATUS_SUCCESS;
  require_device_memory(a, "cublasGemmEx, A");
  require_device_memory(b, "cublasGemmEx, B");
  require_device_memory(c, "cublasGemmEx, C");
  const Product product{
      transa, transb, *static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b, c};
  simulated::enqueue(handle->stream, [product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}
