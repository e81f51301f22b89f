// SPDX-License-Identifier: MIT
#include "compute/cpu/matmul.hpp"

#include "compute/cpu/instructions.hpp"

namespace zero {
namespace {
// The blocks of a product, in fp32 elements. What is named as in BLIS (Van Zee and van de Geijn,
// 2015): mc rows of a, kc elements of a sum and nc columns of b at a time.
constexpr std::int64_t mc = 48, most_kc = 256, most_nc = 256;
constexpr std::int64_t area = std::int64_t{32} << 10;  // of kc x nc elements of b, and of sums
constexpr std::int64_t beside = 16;  // so that rows of a power of two lie in different cache sets

/// Multiples of 16 are what the micro-kernel's vectors are made for.
constexpr std::int64_t up_to_16(std::int64_t count) { return (count + 15) / 16 * 16; }

struct Space {
  float b[area];  // panel after panel
  float sums[area + 16 * most_nc];
  float a[mc * (most_kc + beside)];
  float turned[panel_columns * (most_kc + beside)];  // what is to be transposed, or has been
};

/// to = the stored block [row, row + rows) x [column, column + columns), widened; to_row: elements
/// between the starts of its rows.
void read(const Matrix& matrix, std::int64_t row, std::int64_t rows, std::int64_t column,
          std::int64_t columns, float* to, std::int64_t to_row) {
  with_type(matrix.elements.dtype, [&]<class T>(T) {
    const T* from = matrix.elements.as<T>().data() + row * matrix.columns + column;
    on_wide_vectors([=, from_row = matrix.columns] {
      for (std::int64_t i = 0; i < rows; ++i) {
#pragma GCC ivdep
        for (std::int64_t j = 0; j < columns; ++j)
          to[i * to_row + j] = widen(from[i * from_row + j]);
      }
    });
  });
}

/// a (m x k) times b (k x n): hands every finished block of the sums to
/// finish(row, rows, column, columns, its sums, elements between the starts of their rows).
template <class Finish>
void multiply(const Matrix& a, const Matrix& b, std::int64_t m, std::int64_t k, std::int64_t n,
              Space& space, const Finish& finish) {
  const MicroKernel& kernel = micro_kernel();
  const std::int64_t nc =
      std::min((n + panel_columns - 1) / panel_columns * panel_columns, most_nc);
  const std::int64_t most_rows = area / nc, kc = std::min(area / nc / 16 * 16, most_kc);
  const auto pack = [&](std::int64_t inner, std::int64_t ks, std::int64_t column,
                        std::int64_t columns, float* panel) {
    if (!b.transposed) return read(b, inner, ks, column, columns, panel, panel_columns);
    read(b, column, columns, inner, ks, space.turned, most_kc + beside);
    kernel.transpose(space.turned, most_kc + beside, up_to_16(columns), up_to_16(ks), panel,
                     panel_columns);
  };
  const auto each = [](std::int64_t begin, std::int64_t end, std::int64_t step, auto body) {
    for (; begin < end; begin += step) body(begin, std::min(step, end - begin));
  };
  const auto block = [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                         std::int64_t columns) {
    each(0, k, kc, [&](std::int64_t inner, std::int64_t ks) {
      each(0, columns, panel_columns, [&](std::int64_t j, std::int64_t some) {
        pack(inner, ks, column + j, some, space.b + j * ks);
      });
      each(0, rows, mc, [&](std::int64_t i, std::int64_t some) {
        PanelProduct product{space.a, kc + beside, 1,  space.b, space.sums + i * nc,
                             nc,      some,        ks, columns, inner > 0};
        if (a.transposed) {
          product.a_row = 1;
          product.a_inner = mc;
          read(a, inner, ks, row + i, some, space.a, mc);
        } else {
          read(a, row + i, some, inner, ks, space.a, kc + beside);
        }
        each(0, columns, panel_columns, [&](std::int64_t j, std::int64_t wide) {
          product.panel = space.b + j * ks;
          product.sums = space.sums + i * nc + j;
          product.columns = wide;
          kernel.multiply(product);
        });
        if (inner + ks == k) finish(row + i, some, column, columns, space.sums + i * nc, nc);
      });
    });
  };
  each(0, m, most_rows, [&](std::int64_t row, std::int64_t rows) {
    each(0, n, nc,
         [&](std::int64_t column, std::int64_t columns) { block(row, rows, column, columns); });
  });
}
}  // namespace

void matmul(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, const std::function<void(const RowPart&)>& store) {
  alignas(64) Space space;
  const auto finish = [&](std::int64_t row, std::int64_t some, std::int64_t column,
                          std::int64_t count, const float* sums, std::int64_t sums_row) {
    for (std::int64_t i = 0; i < some; ++i) {
      store({(row + i) * columns + column, column, count, sums + i * sums_row});
    }
  };
  if (a.transposed || !b.transposed || rows > columns) {
    return multiply(a, b, rows, inner, columns, space, finish);
  }
  // Both lie along k, and one is transposed for the micro-kernel: the smaller one, a. The product
  // of the transposed operands is the transposed product, bit by bit.
  multiply({b.elements, b.columns}, {a.elements, a.columns, true}, columns, inner, rows, space,
           [&](std::int64_t row, std::int64_t some, std::int64_t column, std::int64_t count,
               const float* sums, std::int64_t sums_row) {
             for (std::int64_t j = 0; j < count; j += panel_columns) {
               const std::int64_t wide = std::min(panel_columns, count - j);
               micro_kernel().transpose(sums + j, sums_row, up_to_16(some), up_to_16(wide),
                                        space.turned, mc);
               finish(column + j, wide, row, some, space.turned, mc);
             }
           });
}
}  // namespace zero
