// SPDX-License-Identifier: MIT
// All kernels as plain C++.
#include "compute/cuda/kernels.cu"
