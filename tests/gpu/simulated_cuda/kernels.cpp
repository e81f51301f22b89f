// SPDX-License-Identifier: MIT
// All kernels in one translation unit of plain C++.
#include "compute/cuda/data.cu"
#include "compute/cuda/element_wise.cu"
#include "compute/cuda/mlp.cu"
#include "compute/cuda/reduction.cu"
