// SPDX-License-Identifier: MIT
// The table of cuBLAS's functions, filled with the simulated ones.
#include "compute/cuda/blas.hpp"

namespace zero::cuda {
const Blas& blas() {
  static const Blas simulated{cublasCreate,      cublasDestroy,        cublasSetStream,
                              cublasSetMathMode, cublasSetWorkspace,   cublasSetSmCountTarget,
                              cublasGemmEx,      cublasGetStatusString};
  return simulated;
}
}  // namespace zero::cuda
