// SPDX-License-Identifier: MIT
// Matrix products of any storage type in fp32. Element (i, j) is fma(a(i, k), b(k, j), sum) for
// k = 0, 1, 2 ..., from sum = +0, on every machine: how a product is cut into blocks, and how wide
// its vectors are, decides no bit.
#pragma once
#include <functional>

#include "compute/kernels.hpp"

namespace zero {
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
