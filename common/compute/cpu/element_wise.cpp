// SPDX-License-Identifier: MIT
#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
template class ElementWise<CpuKernels>;
}  // namespace zero
