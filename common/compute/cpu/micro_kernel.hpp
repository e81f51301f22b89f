// SPDX-License-Identifier: MIT
// The inner loops of matrix products, one compilation of micro_kernel.cpp for each instruction set.
#pragma once
#include <cstdint>

namespace zero {
/// The columns of a packed panel, whose rows follow each other without gaps.
inline constexpr std::int64_t panel_columns = 32;

/// What MicroKernel::multiply() reads and writes. Strides (a_row, ...) count elements.
struct PanelProduct {
  const float* a;  // (rows, inner): element (i, k) lies at i * a_row + k * a_inner
  std::int64_t a_row, a_inner;
  const float* panel;  // (inner, panel_columns), row-major
  float* sums;  // (rows, columns): element (i, j) lies at i * sums_row + j
  std::int64_t sums_row;
  std::int64_t rows, inner, columns;
  bool add;  // whether to add to sums; if not, they are overwritten
};

struct MicroKernel {
  const char* name;  // of the instruction set
  /// sums (+)= a x panel by fused multiply-adds, k ascending. May write up to the next 16th column.
  void (*multiply)(const PanelProduct& product);
  /// to (columns, rows) = from (rows, columns) transposed; rows and columns are multiples of 16.
  /// from_row, to_row: elements from one row to the next.
  void (*transpose)(const float* from, std::int64_t from_row, std::int64_t rows,
                    std::int64_t columns, float* to, std::int64_t to_row);
};
/// A build defines `plain` and, of the others, only those of its CPU family.
extern const MicroKernel plain, avx2, avx512, neon;
/// Returns the micro-kernel with the widest vectors that this machine has, or the one that the
/// environment's ZERO_VECTORS names. Throws Error (usage) if this machine cannot run that one.
const MicroKernel& micro_kernel();
}  // namespace zero
