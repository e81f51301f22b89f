// SPDX-License-Identifier: MIT
// All kernels in one translation unit of plain C++.
#include "cuda/adam.cu"
#include "cuda/data.cu"
#include "cuda/mlp.cu"
#include "cuda/reduction.cu"
