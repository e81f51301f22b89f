// SPDX-License-Identifier: MIT
#include "compute/cuda/block_sum.cuh"

namespace zero {
template class ElementWise<cuda::CudaKernels>;
}  // namespace zero
