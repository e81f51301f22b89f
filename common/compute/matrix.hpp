// SPDX-License-Identifier: MIT
// Matrices in memory, and those of attention: by heads, and by rows that the mask leaves.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// A row-major matrix in memory, taken as it is or transposed. Elements: View or ConstView.
template <class Elements> struct MatrixOf {
  Elements elements;  // rows x columns as stored; a part of a wider matrix ends with that matrix
  std::int64_t row_stride;  // as stored: the distance between rows
  bool transposed = false;

  operator MatrixOf<ConstView>() const { return {elements, row_stride, transposed}; }
};
using Matrix = MatrixOf<View>;
using ConstMatrix = MatrixOf<ConstView>;

/// Matrices of one shape in memory, each batch_stride elements behind the one before.
template <class Elements> struct MatricesOf {
  MatrixOf<Elements> first;
  std::int64_t batch_stride = 0;

  operator MatricesOf<ConstView>() const { return {first, batch_stride}; }
};
using Matrices = MatricesOf<View>;
using ConstMatrices = MatricesOf<ConstView>;

/// Some heads of an attention. By token they are columns: (sequences, tokens, kv_heads,
/// heads_per_kv, head_dim). By head of keys, the heads that share it lie side by side: (sequences,
/// kv_heads, tokens, heads_per_kv, head_dim).
struct HeadsShape {
  std::int64_t sequences, tokens, kv_heads, heads_per_kv, head_dim;
};

/// The rows of tokens [first, end) in attention's probabilities, matrices (tokens, q_per_kv,
/// tokens). A row sees tokens up to its own. Only elements [0, end) of a row are formed and read.
struct CausalRows {
  std::int64_t tokens, q_per_kv, first, end;
  std::int64_t elements = tokens;  // all rows begin at multiples of it
  std::int64_t rows_in(ConstView all) const { return all.size / (tokens * tokens) * (end - first); }
  HOST_DEVICE std::int64_t seen(std::int64_t row) const {
    return first + row / q_per_kv % (end - first) + 1;
  }
  /// Returns where a row begins.
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    const std::int64_t of_each = (end - first) * q_per_kv;
    return ((row / of_each * tokens + first) * q_per_kv + row % of_each) * tokens;
  }
};
}  // namespace zero
