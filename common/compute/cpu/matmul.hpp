// SPDX-License-Identifier: MIT
// Matrix products of any storage type with fp32 accumulation, block by block in one small panel.
#pragma once
#include <functional>
#include <span>

#include "memory/tensor.hpp"

namespace zero {

/// A row-major matrix in memory, read as it is or transposed.
struct Operand {
  View elements;  // rows x columns as stored
  std::int64_t columns;  // as stored: the distance between rows
  bool transposed = false;
};

/// A finished block of the product: rows [row, row + rows), columns [column, column + columns),
/// row-major without gaps.
struct Block {
  std::int64_t row, rows, column, columns;
  const float* values;
};

/// For this process, from now on. Ranks fill the cores; and the bits of a product depend on the
/// number of threads that form it.
void use_one_matmul_thread();

/// Forms the rows x columns product of a (rows x inner) and b (inner x columns) and hands it to
/// `store` block by block. 16-bit operands are widened first, which is exact.
/// panel: at least matmul_panel elements, overwritten.
void matmul(const Operand& a,
            const Operand& b,
            std::int64_t rows,
            std::int64_t inner,
            std::int64_t columns,
            std::span<float> panel,
            const std::function<void(const Block&)>& store);

/// Blocks of 256 x 384, 384 x 256 and 256 x 256 elements: 1 MiB.
inline constexpr std::int64_t matmul_panel = 256 * 384 + 384 * 256 + 256 * 256;

}  // namespace zero
