// SPDX-License-Identifier: MIT
// Compiled when the build is configured: does this nvcc go with this host compiler?
#include <bit>
#include <cstdint>

__global__ void probe(float* x) { *x = static_cast<float>(std::bit_cast<std::uint32_t>(*x)); }
