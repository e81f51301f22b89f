// SPDX-License-Identifier: MIT
// The inner loops of matrix products, one compilation of micro_kernel.cpp for each instruction set.
#pragma once
#include <cstdint>

namespace zero {
/// Columns of a packed panel, which lie side by side.
inline constexpr std::int64_t panel_columns = 32;

/// All in fp32.
struct PanelProduct {
  const float* a;  // (rows, inner): element (i, k) lies at i * a_row + k * a_inner
  std::int64_t a_row, a_inner;
  const float* panel;  // (inner, panel_columns), row-major
  float* sums;  // (rows, columns): element (i, j) lies at i * sums_row + j
  std::int64_t sums_row;
  std::int64_t rows, inner, columns;
  bool add;  // to what is in sums; else it is written over
};

struct MicroKernel {
  const char* name;  // of the instruction set
  /// sums = a x panel by fused multiply-adds, k ascending. Writes columns up to a multiple of 16.
  void (*multiply)(const PanelProduct& product);
  /// to (columns, rows) = from (rows, columns) transposed; whole multiples of 16 of both are read
  /// and written. from_row, to_row: elements between the starts of rows.
  void (*transpose)(const float* from, std::int64_t from_row, std::int64_t rows,
                    std::int64_t columns, float* to, std::int64_t to_row);
};
/// A build has those of its kind of machine.
extern const MicroKernel plain, avx2, avx512, neon;
/// The widest that this machine can run, or what ZERO_VECTORS (environment) names. Throws Error
/// (usage) if that is not here.
const MicroKernel& micro_kernel();
}  // namespace zero
