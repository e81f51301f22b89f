// SPDX-License-Identifier: MIT
// Compiled once for each instruction set. meson.build defines LANES, the floats in a vector, and
// FUSED, a multiply-add. No inline functions here: the linker might give other files these copies.
#include "compute/cpu/micro_kernel.hpp"

namespace zero {
namespace {
constexpr int lanes = LANES;
// With two vectors of sums for each row a tile nearly fills 32 registers, or AVX2's 16.
constexpr int most_rows = lanes == 8 ? 6 : 12;
using Vector [[gnu::vector_size(4 * lanes)]] = float;
using InMemory [[gnu::vector_size(4 * lanes), gnu::aligned(4), gnu::may_alias]] = float;

Vector load(const float* from) { return *reinterpret_cast<const InMemory*>(from); }
void store(Vector x, float* to) { *reinterpret_cast<InMemory*>(to) = x; }

/// Returns a * b + sum, rounded once. a - Vector{} is a in each lane; a + Vector{} would lose -0.
Vector fused(float a, Vector b, Vector sum) { return FUSED(a - Vector{}, b, sum); }

/// Forms the sums of `rows` rows and `vectors` vectors of columns, which stay in registers.
template <int rows, int vectors>
void tile(const PanelProduct& product, std::int64_t row, std::int64_t column) {
  float* sums = product.sums + row * product.sums_row + column;
  Vector sum[rows][vectors] = {};
  for (int i = 0; i < rows && product.add; ++i) {
    for (int j = 0; j < vectors; ++j) sum[i][j] = load(sums + i * product.sums_row + j * lanes);
  }
  const float* a = product.a + row * product.a_row;
  const float* panel = product.panel + column;
  for (std::int64_t k = 0; k < product.inner; ++k) {
    Vector b[vectors];
    for (int j = 0; j < vectors; ++j) b[j] = load(panel + j * lanes);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < vectors; ++j) sum[i][j] = fused(a[i * product.a_row], b[j], sum[i][j]);
    }
    a += product.a_inner;
    panel += panel_columns;
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) store(sum[i][j], sums + i * product.sums_row + j * lanes);
  }
}

template <int vectors> void columns_of(const PanelProduct& product, std::int64_t column) {
  constexpr int few_rows = most_rows / 3;
  std::int64_t row = 0;
  for (; row + most_rows <= product.rows; row += most_rows) {
    tile<most_rows, vectors>(product, row, column);
  }
  for (; row + few_rows <= product.rows; row += few_rows) {
    tile<few_rows, vectors>(product, row, column);
  }
  for (; row < product.rows; ++row) tile<1, vectors>(product, row, column);
}

void multiply(const PanelProduct& product) {
  std::int64_t column = 0;
  for (; column + lanes < product.columns; column += 2 * lanes) columns_of<2>(product, column);
  if (column < product.columns) columns_of<1>(product, column);
}

template <int... i> struct Numbers {};  // std::integer_sequence, without its header
template <int n, int... i> struct UpTo : UpTo<n - 1, n - 1, i...> {};
template <int... i> struct UpTo<0, i...> { using Type = Numbers<i...>; };

/// x, y: two rows. In each 2 * step columns the right half of x and the left half of y are swapped.
template <int step, int... i> void exchange(Vector& x, Vector& y, Numbers<i...>) {
  const Vector upper = x, lower = y;
  x = __builtin_shufflevector(upper, lower, (i & step ? lanes + i - step : i)...);
  y = __builtin_shufflevector(upper, lower, (i & step ? lanes + i : i + step)...);
}

/// Transposes a square of vectors in place: swaps blocks of 1 x 1, then of 2 x 2, of 4 x 4 ...
template <int step = 1> void transpose_square(Vector (&rows)[lanes]) {
  if constexpr (step < lanes) {
    for (int i = 0; i < lanes; ++i) {
      if (i & step) exchange<step>(rows[i - step], rows[i], typename UpTo<lanes>::Type());
    }
    transpose_square<2 * step>(rows);
  }
}

void transpose(const float* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns,
               float* to, std::int64_t to_row) {
  for (std::int64_t row = 0; row < rows; row += lanes) {
    for (std::int64_t column = 0; column < columns; column += lanes) {
      Vector square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = load(from + (row + i) * from_row + column);
      transpose_square(square);
      for (int i = 0; i < lanes; ++i) store(square[i], to + (column + i) * to_row + row);
    }
  }
}
}  // namespace

#define NAME_OF(name) #name
#define STRING(name) NAME_OF(name)
const MicroKernel INSTRUCTIONS{STRING(INSTRUCTIONS), multiply, transpose};
}  // namespace zero
