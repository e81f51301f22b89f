// SPDX-License-Identifier: MIT
// Matrices in memory, and those of attention: by heads, and by rows that the mask leaves.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// A row-major matrix in memory, taken as it is or transposed. Elements: View or ConstView.
template <class Elements> struct MatrixOf {
  Elements elements;  // rows x columns as stored; of a part of a wider one up to that one's end
  std::int64_t row_stride;  // as stored: the distance between rows
  bool transposed = false;

  operator MatrixOf<ConstView>() const { return {elements, row_stride, transposed}; }
};
using Matrix = MatrixOf<View>;
using ConstMatrix = MatrixOf<ConstView>;

/// Matrices of one shape in memory, each so many elements behind the one before.
template <class Elements> struct MatricesOf {
  MatrixOf<Elements> first;
  std::int64_t batch_stride = 0;

  operator MatricesOf<ConstView>() const { return {first, batch_stride}; }
};
using Matrices = MatricesOf<View>;
using ConstMatrices = MatricesOf<ConstView>;

/// Some heads of an attention: by token they are columns, (sequences, tokens, kv_heads,
/// heads_per_kv, head_dim); by head of keys, with what they share keys with side by side,
/// (sequences, kv_heads, tokens, heads_per_kv, head_dim).
struct HeadsShape {
  std::int64_t sequences, tokens, kv_heads, heads_per_kv, head_dim;
};

/// Of attention's probabilities, matrices (tokens, q_per_kv, tokens), the rows of tokens [first,
/// end). They see those up to their own. [0, end) of a row is formed, and nobody reads behind it.
struct CausalRows {
  std::int64_t tokens, q_per_kv, first, end;
  std::int64_t elements = tokens;  // of which all rows begin at multiples
  std::int64_t rows_in(ConstView all) const { return all.size / (tokens * tokens) * (end - first); }
  HOST_DEVICE std::int64_t seen(std::int64_t row) const {
    return first + row / q_per_kv % (end - first) + 1;
  }
  /// Where a row begins.
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    const std::int64_t of_each = (end - first) * q_per_kv;
    return ((row / of_each * tokens + first) * q_per_kv + row % of_each) * tokens;
  }
};
}  // namespace zero
