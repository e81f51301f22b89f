// SPDX-License-Identifier: MIT
// Matrix products have the bits of a plain loop, at sizes around the borders of the blocks. Meson
// runs this file for each instruction set; those that the machine lacks are skipped.
#include "compute/cpu/matmul.hpp"

#include <cmath>

#include "tests/count_listener.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
struct Shape {
  std::int64_t rows, inner, columns;
};

/// matmul() takes blocks of up to 48 rows, 256 columns and 128 to 256 inner elements, in panels of
/// 32 columns and vectors of up to 16 elements; it keeps sums of 128 rows of 256 columns, or 1024
/// rows of 32. The shapes have one less of these, as many, one more, or several and a rest. At 200
/// columns, blocks of inner elements that 16 does not divide would overflow the panels' memory.
constexpr Shape shapes[] = {{1, 1, 1},       {1, 257, 33},  {49, 1, 256},   {48, 256, 31},
                            {129, 129, 257}, {1025, 17, 3}, {3, 300, 1025}, {47, 515, 70},
                            {17, 128, 513},  {96, 255, 32}, {5, 300, 200}};

/// A matrix, stored by rows, or by columns if transposed. Element (i, j) is value(i * columns + j).
struct Stored {
  Stored(Dtype dtype, std::int64_t rows, std::int64_t columns, bool transposed, auto value)
      : tensor(cpu(), Kind::data, dtype, rows * columns),
        operand{tensor.view(), transposed ? rows : columns, transposed} {
    fill(tensor.view(), [&](std::int64_t at) {
      const std::int64_t i = transposed ? at % rows : at / columns;
      const std::int64_t j = transposed ? at / rows : at % columns;
      return value(i * columns + j);
    });
  }
  Tensor tensor;
  Matrix operand;
};

/// The product a b. The test fails if matmul() stores an element twice.
std::vector<float> product(const Shape& shape, const Matrix& a, const Matrix& b) {
  std::vector<float> result(shape.rows * shape.columns, NAN);
  matmul(a, b, shape.rows, shape.inner, shape.columns, [&](const RowPart& part) {
    for (std::int64_t i = 0; i < part.count; ++i) {
      float& element = result[part.row * shape.columns + part.column + i];
      if (!std::isnan(element)) FAIL("stored twice: ", part.row, ", ", part.column + i);
      element = part.values[i];
    }
  });
  return result;
}

/// Whether this machine has the instruction set that ZERO_VECTORS names; else sets why_skipped.
bool has_vectors() try { return micro_kernel().name != nullptr; } catch (const Error& missing) {
  why_skipped = missing.what();
  return false;
}
}  // namespace

TEST_CASE("an element is one chain of fused multiply-adds, however its operands are stored") {
  if (!has_vectors()) return;
  const Generator left(1, RandomStream::weights), right(1, RandomStream::inputs);
  const auto a = [&](std::int64_t i) { return left.uniform(i); };
  const auto b = [&](std::int64_t i) { return right.uniform(i); };
  for (const Shape& shape : shapes) {
    for (const Dtype dtype : dtypes) {
      std::vector<float> sums(shape.rows * shape.columns);
      for (std::int64_t i = 0; i < shape.rows; ++i) {
        for (std::int64_t k = 0; k < shape.inner; ++k) {
          const float factor = rounded(dtype, a(i * shape.inner + k));
          for (std::int64_t j = 0; j < shape.columns; ++j) {
            float& sum = sums[i * shape.columns + j];
            sum = std::fma(factor, rounded(dtype, b(k * shape.columns + j)), sum);
          }
        }
      }
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          INFO(shape.rows, " x ", shape.inner, " x ", shape.columns, ", ",
               std::string(name_of(dtype)), ", transposed: ", transpose_a, ", ", transpose_b);
          const Stored x(dtype, shape.rows, shape.inner, transpose_a, a);
          const Stored y(dtype, shape.inner, shape.columns, transpose_b, b);
          CHECK(product(shape, x.operand, y.operand) == sums);
          if (shape.columns % 16 > 0) continue;
          const std::int64_t row = shape.columns + 1;  // matmul() must leave its last number
          constexpr float untouched = 12345;
          std::vector<float> in_place(shape.rows * row, untouched), expected(in_place);
          for (std::size_t i = 0; i < sums.size(); ++i) {
            expected[i / shape.columns * row + i % shape.columns] = sums[i];
          }
          matmul(x.operand, y.operand, shape.rows, shape.inner, shape.columns, in_place.data(),
                 row);
          CHECK(in_place == expected);
        }
      }
    }
  }
}

TEST_CASE("products run on the instructions that ZERO_VECTORS names, else on the widest") {
  if (!has_vectors()) return;
  const char* const asked = std::getenv("ZERO_VECTORS");
  CHECK(micro_kernels().back() == &plain);
  CHECK(std::string(micro_kernel().name) == (asked ? asked : micro_kernels().front()->name));
}
}  // namespace zero::test
