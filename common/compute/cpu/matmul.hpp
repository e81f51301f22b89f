// SPDX-License-Identifier: MIT
// Matrix products of any storage type in fp32. Element (i, j) is fma(a(i, k), b(k, j), sum) for
// k = 0, 1, 2 ..., from sum = +0, on every machine: how a product is cut into blocks, and of which
// instructions it is made, the widest vectors that this machine has, decides no bit.
#pragma once
#include <functional>
#include <vector>

#include "compute/cpu/micro_kernel.hpp"
#include "compute/kernels.hpp"
#include "compute/machine.hpp"

namespace zero {
/// Those that this machine can run, the widest first.
std::vector<const MicroKernel*> micro_kernels();
/// The one that the environment variable ZERO_VECTORS names, else the widest. Throws Error (usage)
/// when this machine does not have it.
const MicroKernel& micro_kernel();

template <class Loop> [[WIDE_LOOP]] void with_wide_vectors(const Loop& loop) { loop(); }

/// For element-wise loops. Their multiplications and additions are never contracted.
template <class Loop> void on_wide_vectors(const Loop& loop) {
  static const bool wide = &micro_kernel() != &plain;
  wide ? with_wide_vectors(loop) : loop();
}

/// `count` neighbours of a finished product, in one row: elements [at, at + count) of it,
/// row-major, the first of them in that column.
struct RowPart {
  std::int64_t at, column, count;
  const float* values;
};

/// Forms the rows x columns product of a (rows x inner) and b (inner x columns), none of them 0,
/// and hands each element of it to `store` once. 16-bit operands are widened first, which is exact.
/// Its blocks take 0.4 MB of the caller's stack.
void matmul(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, const std::function<void(const RowPart&)>& store);

/// The same, formed in its place, `result` (rows x columns, row-major), which is neither operand:
/// one copy less. Throws std::logic_error when columns is no multiple of 16.
void matmul(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, float* result);
}  // namespace zero
