// SPDX-License-Identifier: MIT
// Matrix products by cuBLAS: operands and product in their storage type, sums in fp32.
#include "compute/cuda/blas.hpp"
#include "compute/cuda/check.hpp"
#include "compute/cuda/cuda_kernels.hpp"

namespace zero::cuda {
namespace {
cudaDataType type_of(Dtype dtype) {
  constexpr cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
  return types[static_cast<int>(dtype)];
}
}  // namespace

void CudaKernels::multiply(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
                           std::int64_t columns, View product, View panel) {
  if (!blas_) {
    check_cublas(blas().create(&blas_));
    check_cublas(blas().set_stream(blas_, stream()));
    // No TF32, and no partial sums in 16 bit: fp32 throughout.
    check_cublas(blas().set_math_mode(
        blas_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                         CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  }
  if (blas_workspace_ != panel.data) {
    check_cublas(blas().set_workspace(blas_, panel.data, blas_workspace_bytes));
    blas_workspace_ = panel.data;
  }
  const auto operation = [](const Matrix& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const float one = 1, zero = 0;
  // cuBLAS thinks in columns: what lies row by row is the transpose to it, so it is given
  // product^T = b^T a^T.
  check_cublas(blas().gemm(blas_, operation(b), operation(a), static_cast<int>(columns),
                           static_cast<int>(rows), static_cast<int>(inner), &one, b.elements.data,
                           type_of(b.elements.dtype), static_cast<int>(b.columns), a.elements.data,
                           type_of(a.elements.dtype), static_cast<int>(a.columns), &zero,
                           product.data, type_of(product.dtype), static_cast<int>(columns),
                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}
}  // namespace zero::cuda
