// SPDX-License-Identifier: MIT
#include "compute/cpu/matmul.hpp"

#include "memory/throw_error.hpp"

namespace zero {
namespace {
// The blocks of a product, in fp32 elements. BLIS (Van Zee and van de Geijn, 2015) has these names:
// a block takes mc rows of a, kc terms of each sum and nc columns of b.
constexpr std::int64_t mc = 48, most_kc = 256, most_nc = 256;
constexpr std::int64_t area = std::int64_t{32} << 10;  // most elements of kc x nc, and of sums
constexpr std::int64_t padding = 16;  // floats behind a row: rows 2^n apart would share a cache set

static_assert(mc % 16 == 0);

/// Rounds up to a multiple of 16, because MicroKernel::transpose() takes whole sixteens.
constexpr std::int64_t up_to_16(std::int64_t count) { return (count + 15) / 16 * 16; }

struct Space {
  float b[area];  // panel after panel
  float sums[area + 16 * most_nc];  // 16 rows more: transposition reads whole sixteens
  float a[mc * (most_kc + padding)];
  float transposed[panel_columns * (most_kc + padding)];  // transpose()'s operand or its result
};

/// to = block [row, row + rows) x [column, column + columns) of the matrix as stored, widened, in
/// panels. to_row: elements from row to row of a panel in `to`; to_panel: from panel to panel.
void read(const ConstMatrix& matrix, std::int64_t row, std::int64_t rows, std::int64_t column,
          std::int64_t columns, float* to, std::int64_t to_row, std::int64_t to_panel) {
  with_type(matrix.elements.dtype, [&]<class T>(T) {
    const T* from = matrix.elements.as<T>().data() + row * matrix.row_stride + column;
    const auto copy = [](const T* source, std::int64_t count, float* target) {
#pragma GCC ivdep
      for (std::int64_t j = 0; j < count; ++j) target[j] = widen(source[j]);
    };
    on_wide_vectors([=, from_row = matrix.row_stride] {
      for (std::int64_t i = 0; i < rows; ++i) {
        const T* source = from + i * from_row;
        float* target = to + i * to_row;
        // Rows are short and lie far apart, so the machine does not prefetch them by itself.
        const std::int64_t rows_ahead = i + 4 < rows ? 4 * from_row : 0;
        std::int64_t left = columns;
        for (; left >= panel_columns; left -= panel_columns) {
          __builtin_prefetch(source + rows_ahead);
          copy(source, panel_columns, target);
          source += panel_columns;
          target += to_panel;
        }
        copy(source, left, target);
      }
    });
  });
}

/// Packs b's block (inner_count, count) as panels. Sums of columns behind `count` are never read.
void pack_b(const ConstMatrix& b, std::int64_t inner, std::int64_t inner_count, std::int64_t column,
            std::int64_t count, Space& space) {
  if (!b.transposed) {
    return read(b, inner, inner_count, column, count, space.b, panel_columns,
                panel_columns * inner_count);
  }
  for (std::int64_t j = 0; j < count; j += panel_columns) {
    const std::int64_t some = std::min(panel_columns, count - j);
    read(b, column + j, some, inner, inner_count, space.transposed, most_kc + padding,
         panel_columns);
    micro_kernel().transpose(space.transposed, most_kc + padding, up_to_16(some),
                             up_to_16(inner_count), space.b + j * inner_count, panel_columns);
  }
}

/// Points product.a to a's block: in a, if fp32, not transposed and read once; else in space.a.
void pack_a(const ConstMatrix& a, std::int64_t row, std::int64_t count, std::int64_t inner,
            std::int64_t inner_count, bool read_once, Space& space, PanelProduct& product) {
  product.a = space.a;
  product.a_row = a.transposed ? 1 : most_kc + padding;
  product.a_inner = a.transposed ? mc : 1;
  if (a.transposed) return read(a, inner, inner_count, row, count, space.a, mc, panel_columns);
  if (read_once && a.elements.dtype == Dtype::fp32) {
    product.a = a.elements.as<float>().data() + row * a.row_stride + inner;
    product.a_row = a.row_stride;
  } else {
    read(a, row, count, inner, inner_count, space.a, most_kc + padding, panel_columns);
  }
}

/// Calls body(i, count) for the `end` numbers from 0 on, `step` at a time.
void in_steps(std::int64_t end, std::int64_t step, auto body) {
  for (std::int64_t i = 0; i < end; i += step) body(i, std::min(step, end - i));
}

/// Multiplies a (m x k) and b (k x n). Writes the product to `result`, whose rows are result_row
/// elements apart; n is then a multiple of 16. If result is null, calls finish(row, rows, column,
/// columns, sums, sums_row) for each finished block; sums_row: elements from row to row of sums.
template <class Finish>
void multiply(const ConstMatrix& a, const ConstMatrix& b, std::int64_t m, std::int64_t k,
              std::int64_t n, float* result, std::int64_t result_row, Space& space,
              const Finish& finish) {
  expect(m > 0 && k > 0 && n > 0, "a product's rows, columns and terms are more than 0");
  const std::int64_t nc =
      std::min((n + panel_columns - 1) / panel_columns * panel_columns, most_nc);
  // A multiple of 16: transpose() takes sixteens, and must write nothing behind the last panel.
  const std::int64_t kc = std::min(area / nc / 16 * 16, most_kc);
  const auto block = [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                         std::int64_t columns, float* sums, std::int64_t sums_row) {
    in_steps(k, kc, [&](std::int64_t inner, std::int64_t inner_count) {
      pack_b(b, inner, inner_count, column, columns, space);
      in_steps(rows, mc, [&](std::int64_t i, std::int64_t some) {
        PanelProduct product{};
        product.sums_row = sums_row;
        product.rows = some;
        product.inner = inner_count;
        product.add = inner > 0;
        pack_a(a, row + i, some, inner, inner_count, nc == panel_columns, space, product);
        in_steps(columns, panel_columns, [&](std::int64_t j, std::int64_t wide) {
          product.panel = space.b + j * inner_count;
          product.sums = sums + i * sums_row + j;
          product.columns = wide;
          micro_kernel().multiply(product);
        });
        if (result || inner + inner_count < k) return;
        finish(row + i, some, column, columns, sums + i * sums_row, sums_row);
      });
    });
  };
  in_steps(m, result ? 8 * mc : area / nc, [&](std::int64_t row, std::int64_t rows) {
    in_steps(n, nc, [&](std::int64_t column, std::int64_t columns) {
      float* const in_place = result + row * result_row + column;
      if (result) return block(row, rows, column, columns, in_place, result_row);
      block(row, rows, column, columns, space.sums, nc);
    });
  });
}
}  // namespace

std::vector<const MicroKernel*> micro_kernels() {
  using Built = std::pair<const MicroKernel*, bool>;  // a kernel; whether it runs on this machine
  std::vector<const MicroKernel*> here;
  for (const auto& [kernel, runs] : std::initializer_list<Built>{MICRO_KERNELS}) {
    if (runs) here.push_back(kernel);
  }
  return here;
}

const MicroKernel& micro_kernel() {
  static const MicroKernel& chosen = []() -> const MicroKernel& {
    const char* asked = std::getenv("ZERO_VECTORS");
    std::string names;
    for (const MicroKernel* kernel : micro_kernels()) {
      if (!asked || std::string(asked) == kernel->name) return *kernel;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel->name);
    }
    throw_error(ExitCode::usage, "ZERO_VECTORS={}: this machine has {}", asked, names);
  }();
  return chosen;
}

void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, float* result, std::int64_t result_row) {
  expect(columns % 16 == 0, "columns must be a multiple of 16");
  alignas(64) Space space;
  multiply(a, b, rows, inner, columns, result, result_row, space, [](auto...) {});
}

void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, const std::function<void(const RowPart&)>& store) {
  alignas(64) Space space;
  const auto finish = [&](std::int64_t row, std::int64_t some, std::int64_t column,
                          std::int64_t count, const float* sums, std::int64_t sums_row) {
    for (std::int64_t i = 0; i < some; ++i) {
      store({row + i, column, count, sums + i * sums_row});
    }
  };
  if (a.transposed || !b.transposed || rows > columns) {
    return multiply(a, b, rows, inner, columns, nullptr, 0, space, finish);
  }
  // Both lie along `inner`, so pack_b() transposes one: a, the smaller. b^T a^T has (a b)^T's bits.
  multiply({b.elements, b.row_stride}, {a.elements, a.row_stride, true}, columns, inner, rows,
           nullptr, 0, space,
           [&](std::int64_t row, std::int64_t some, std::int64_t column, std::int64_t count,
               const float* sums, std::int64_t sums_row) {
             in_steps(count, panel_columns, [&](std::int64_t j, std::int64_t wide) {
               micro_kernel().transpose(sums + j, sums_row, up_to_16(some), up_to_16(wide),
                                        space.transposed, mc);
               finish(column + j, wide, row, some, space.transposed, mc);
             });
           });
}
}  // namespace zero
