// SPDX-License-Identifier: MIT
#include "compute/cpu/matmul.hpp"

#include <cblas.h>

#include "memory/error.hpp"

// OpenBLAS is not instrumented, so what it reads and writes is announced to ThreadSanitizer, where
// the program is linked with it.
extern "C" [[gnu::weak]] void __tsan_read_range(void* address, unsigned long bytes);
extern "C" [[gnu::weak]] void __tsan_write_range(void* address, unsigned long bytes);

namespace zero {
namespace {
constexpr std::int64_t outer_block = 256;
constexpr std::int64_t inner_block = 384;

struct Fp32Block {
  const float* values;
  std::int64_t stride;
};

/// The stored block [row, row + rows) x [column, column + columns) in fp32: where it lies when it
/// is fp32 already, else widened into `space`.
Fp32Block fp32_block(const Matrix& matrix, std::int64_t row, std::int64_t rows, std::int64_t column,
                     std::int64_t columns, float* space) {
  return with_type(matrix.elements.dtype, [&]<class T>(T) -> Fp32Block {
    const T* source = matrix.elements.as<T>().data() + row * matrix.columns + column;
    if constexpr (std::is_same_v<T, float>) return {source, matrix.columns};
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        space[i * columns + j] = widen(source[i * matrix.columns + j]);
      }
    }
    return {space, columns};
  });
}
}  // namespace

void use_one_matmul_thread() { openblas_set_num_threads(1); }

void matmul(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, std::span<float> panel,
            const std::function<void(const RowPart&)>& store) {
  expect(std::ssize(panel) >= matmul_panel, "matmul needs a panel of matmul_panel elements");
  for (const View read : {a.elements, b.elements}) {
    if (__tsan_read_range) __tsan_read_range(read.data, read.bytes());
  }
  float* const space_a = panel.data();
  float* const space_b = space_a + outer_block * inner_block;
  float* const product = space_b + inner_block * outer_block;
  const auto read = [](const Matrix& x, std::int64_t i, std::int64_t m, std::int64_t j,
                       std::int64_t n, float* space) {
    return x.transposed ? fp32_block(x, j, n, i, m, space) : fp32_block(x, i, m, j, n, space);
  };
  for (std::int64_t i = 0; i < rows; i += outer_block) {
    for (std::int64_t j = 0; j < columns; j += outer_block) {
      const std::int64_t m = std::min(outer_block, rows - i);
      const std::int64_t n = std::min(outer_block, columns - j);
      if (__tsan_write_range) __tsan_write_range(product, m * n * sizeof(float));
      for (std::int64_t p = 0; p < inner; p += inner_block) {
        const std::int64_t k = std::min(inner_block, inner - p);
        const Fp32Block left = read(a, i, m, p, k, space_a);
        const Fp32Block right = read(b, p, k, j, n, space_b);
        cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                    b.transposed ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, left.values,
                    left.stride, right.values, right.stride, p == 0 ? 0.0f : 1.0f, product, n);
      }
      for (std::int64_t r = 0; r < m; ++r) store({(i + r) * columns + j, j, n, product + r * n});
    }
  }
}
}  // namespace zero
