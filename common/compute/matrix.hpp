// SPDX-License-Identifier: MIT
// How matrices lie in memory, and how attention's heads and causally masked rows do.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// A row-major matrix in memory, taken as it is or transposed. Elements: View or ConstView.
template <class Elements> struct MatrixOf {
  Elements elements;  // as stored, from this matrix's first on; others may lie between its rows
  std::int64_t row_stride;  // as stored: elements from the start of a row to the next
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

/// Attention's heads, in two layouts. By token: (sequences, tokens, kv_heads, heads_per_kv,
/// head_dim). By head of keys: (sequences, kv_heads, tokens, heads_per_kv, head_dim), so that all
/// query heads with one head of keys form a matrix. heads_per_kv is 1 for keys and for values.
struct HeadsShape {
  std::int64_t sequences, tokens, kv_heads, heads_per_kv, head_dim;
};

/// The rows of tokens [first, end) in attention's probabilities, (tokens, q_per_kv, tokens) for
/// each head of keys. A row sees tokens up to its own. Of a row only elements [0, end) are used.
struct CausalRows {
  std::int64_t tokens, q_per_kv, first, end;
  std::int64_t elements = tokens;  // each row begins at a multiple of so many elements
  std::int64_t rows_in(ConstView all) const { return all.size / (tokens * tokens) * (end - first); }
  HOST_DEVICE std::int64_t seen(std::int64_t row) const {  // the number of tokens that it sees
    return first + row / q_per_kv % (end - first) + 1;
  }
  /// Returns at which element row number `row` begins.
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    const std::int64_t of_each = (end - first) * q_per_kv;
    return ((row / of_each * tokens + first) * q_per_kv + row % of_each) * tokens;
  }
};
}  // namespace zero
