// SPDX-License-Identifier: MIT
// Matrix products of the simulated GPU, by the CPU's on fp32 copies.
#include "compute/cpu/matmul.hpp"
#include "compute/cuda/blas.hpp"

struct cublasContext {
  cudaStream_t stream;
  bool has_workspace;
  int multiprocessors = simulated::multiprocessors;
};

namespace {
/// A matrix as it lies in memory, column by column.
struct Matrix {
  Matrix(const char* name, const void* data, cudaDataType type, int rows, int columns, int leading)
      : data(const_cast<void*>(data)),
        dtype(type == CUDA_R_32F   ? zero::Dtype::fp32
              : type == CUDA_R_16F ? zero::Dtype::fp16
                                   : zero::Dtype::bf16),
        rows(rows),
        columns(columns),
        leading(leading) {
    if (rows < 1 || columns < 1 || leading < rows) {
      simulated::die("cublasGemmEx: %s is %d x %d, %d apart", name, rows, columns, leading);
    }
    const std::int64_t elements = std::int64_t{columns - 1} * leading + rows;
    simulated::require_device_memory(data, elements * zero::bytes_of(dtype), name);
  }

  void for_each(auto visit) const {
    zero::with_type(dtype, [&]<class T>(T) {
      for (int column = 0; column < columns; ++column) {
        T* const top = static_cast<T*>(data) + std::int64_t{column} * leading;
        for (int row = 0; row < rows; ++row) visit(top[row]);
      }
    });
  }

  std::vector<float> values() const {
    std::vector<float> all;
    all.reserve(std::size_t(rows) * columns);
    for_each([&](auto element) { all.push_back(zero::widen(element)); });
    return all;
  }

  void* data;
  zero::Dtype dtype;
  int rows, columns, leading;
};
}  // namespace

const char* cublasGetStatusString(cublasStatus_t) { return "CUBLAS_STATUS_SUCCESS"; }

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext{};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  cudaDeviceSynchronize();
  return CUBLAS_STATUS_SUCCESS;
}

/// The real one too falls back to a workspace of its own.
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->has_workspace = false;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    simulated::die("cublasSetWorkspace: %zu bytes at %p", bytes, workspace);
  }
  simulated::require_device_memory(workspace, bytes, "cublasSetWorkspace");
  handle->has_workspace = true;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int multiprocessors) {
  handle->multiprocessors = multiprocessors;
  return CUBLAS_STATUS_SUCCESS;
}

/// All modes are precise here.
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

/// Each element is summed in fp32 and rounded once.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  if (!handle->has_workspace) {
    simulated::die("cublasGemmEx: no workspace was set since the stream was");
  }
  if (handle->multiprocessors + simulated::message_blocks > simulated::multiprocessors) {
    simulated::die("cublasGemmEx: %d of %d multiprocessors and %d blocks of NCCL's: it would wait",
                   handle->multiprocessors, simulated::multiprocessors,
                   simulated::message_blocks.load());
  }
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) {
    simulated::die("cublasGemmEx: more than a product is not simulated");
  }
  if (Atype != Btype || (Ctype != Atype && Ctype != CUDA_R_32F)) {
    simulated::die("cublasGemmEx: no product of types %d and %d is a %d", Atype, Btype, Ctype);
  }
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const bool turn_a = transa == CUBLAS_OP_T, turn_b = transb == CUBLAS_OP_T;
  const Matrix a("A", A, Atype, turn_a ? k : m, turn_a ? m : k, lda);
  const Matrix b("B", B, Btype, turn_b ? n : k, turn_b ? k : n, ldb);
  const Matrix c("C", C, Ctype, m, n, ldc);
  simulated::enqueue(handle->stream, [=] {
    std::vector<float> product(std::size_t(m) * n);
    // Row by row what lies column by column is transposed: product^T = b^T a^T.
    const auto operand = [](std::vector<float>& values, std::int64_t rows, bool turned) {
      const std::int64_t size = std::ssize(values);
      const zero::View view{reinterpret_cast<std::byte*>(values.data()), size, size};
      return zero::Matrix{view, rows, turned};
    };
    std::vector<float> left = b.values(), right = a.values();
    zero::matmul(operand(left, b.rows, turn_b), operand(right, a.rows, turn_a), n, k, m,
                 [&](const zero::RowPart& part) {
                   std::copy_n(part.values, part.count, product.data() + part.at);
                 });
    const float* next = product.data();
    c.for_each([&]<class T>(T& element) { element = zero::narrow<T>(*next++); });
  });
  return CUBLAS_STATUS_SUCCESS;
}

const zero::cuda::Blas& zero::cuda::blas() {
  static const Blas simulated{cublasCreate,      cublasDestroy,        cublasSetStream,
                              cublasSetMathMode, cublasSetWorkspace,   cublasSetSmCountTarget,
                              cublasGemmEx,      cublasGetStatusString};
  return simulated;
}
