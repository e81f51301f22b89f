// SPDX-License-Identifier: MIT
// Matrix products of any storage type with fp32 accumulation, block by block in one small panel.
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

/// For this process, from now on. Ranks fill the cores; and the bits of a product depend on the
/// number of threads that form it.
void use_one_matmul_thread();

/// Forms the rows x columns product of a (rows x inner) and b (inner x columns) and hands each
/// element of it to `store` once. 16-bit operands are widened first, which is exact.
/// panel: at least matmul_panel elements, overwritten.
void matmul(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, std::span<float> panel,
            const std::function<void(const RowPart&)>& store);

/// Blocks of 256 x 384, 384 x 256 and 256 x 256 elements: 1 MiB.
inline constexpr std::int64_t matmul_panel = 256 * 384 + 384 * 256 + 256 * 256;
}  // namespace zero
