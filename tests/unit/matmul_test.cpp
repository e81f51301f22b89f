// SPDX-License-Identifier: MIT
// Matrix products against sums in double, at sizes around the borders of the blocks.
#include "compute/cpu/matmul.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/unit/elements.hpp"

namespace zero::test {
namespace {
struct Shape {
  std::int64_t rows, inner, columns;
};

/// Blocks are 256 rows and columns, 384 inner elements: one less, just as many, one more, and two
/// of each with a rest.
constexpr Shape shapes[] = {{1, 1, 1},       {1, 385, 257},   {257, 1, 256},
                            {256, 383, 1},   {255, 383, 257}, {256, 384, 256},
                            {257, 385, 255}, {3, 770, 514},   {515, 5, 3}};

/// rows x columns numbers value(i), stored as they are or transposed.
struct Stored {
  Stored(Dtype dtype, std::int64_t rows, std::int64_t columns, bool transposed, auto value)
      : tensor(Device::cpu, Kind::data, dtype, rows * columns),
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

/// The product; each element must be stored exactly once.
std::vector<float> product(const Shape& shape, const Matrix& a, const Matrix& b) {
  std::vector<float> panel(matmul_panel);
  std::vector<float> result(shape.rows * shape.columns, NAN);
  matmul(a, b, shape.rows, shape.inner, shape.columns, panel, [&](const RowPart& part) {
    CHECK(part.column == part.at % shape.columns);
    for (std::int64_t i = 0; i < part.count; ++i) {
      if (!std::isnan(result[part.at + i])) FAIL("stored twice: ", part.at + i);
      result[part.at + i] = part.values[i];
    }
  });
  return result;
}

/// The product, and the sums of the absolute values of its terms, in double.
struct Reference {
  Reference(const Shape& shape, Dtype dtype, auto value_a, auto value_b)
      : sums(shape.rows * shape.columns), magnitudes(sums.size()) {
    std::vector<double> b(shape.inner * shape.columns);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = rounded(dtype, value_b(i));
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t k = 0; k < shape.inner; ++k) {
        const double a = rounded(dtype, value_a(i * shape.inner + k));
        for (std::int64_t j = 0; j < shape.columns; ++j) {
          const double term = a * b[k * shape.columns + j];
          sums[i * shape.columns + j] += term;
          magnitudes[i * shape.columns + j] += std::abs(term);
        }
      }
    }
  }
  std::vector<double> sums, magnitudes;
};

/// Compares all four ways of storing the operands; `bound` is in units of a sum of magnitudes.
void check(const Shape& shape, Dtype dtype, auto value_a, auto value_b, double bound) {
  const Reference reference(shape, dtype, value_a, value_b);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      INFO(shape.rows, " x ", shape.inner, " x ", shape.columns, ", ", std::string(name_of(dtype)));
      INFO("transposed: ", transpose_a, ", ", transpose_b);
      const Stored a(dtype, shape.rows, shape.inner, transpose_a, value_a);
      const Stored b(dtype, shape.inner, shape.columns, transpose_b, value_b);
      const std::vector<float> result = product(shape, a.operand, b.operand);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < result.size(); ++i) {
        const double error = std::abs(result[i] - reference.sums[i]);
        wrong += !(error <= bound * reference.magnitudes[i]);  // NaN is wrong too
      }
      CHECK(wrong == 0);
    }
  }
}
}  // namespace

TEST_CASE("products of small integers are exact") {
  // |sum| <= 770 * 16 < 2^24: every partial sum is an integer that fp32 holds, in any order.
  const auto integer = [](std::int64_t i) { return static_cast<float>(mix(i) % 9) - 4; };
  const auto other = [](std::int64_t i) { return static_cast<float>(mix(i + (1 << 30)) % 9) - 4; };
  for (const Shape& shape : shapes) {
    for (const Dtype dtype : dtypes) check(shape, dtype, integer, other, 0);
  }
}

TEST_CASE("products are within the error of fp32 sums, whatever the storage type") {
  const Generator left(1, RandomStream::weights);
  const Generator right(1, RandomStream::inputs);
  const auto a = [&](std::int64_t i) { return left.uniform(i); };
  const auto b = [&](std::int64_t i) { return right.uniform(i); };
  for (const Shape& shape : shapes) {
    // Each of the k terms passes through at most k roundings (its product and k - 1 additions, in
    // whatever order; a fused multiply-add has one fewer), each of 2^-24 at most:
    // |error| <= k 2^-24 / (1 - k 2^-24) * sum |a| |b|. That of the reference, in double, is
    // k 2^-53, less than what the denominator adds for k > 1; k = 1 is exact there.
    const double roundings = static_cast<double>(shape.inner) * 0x1p-24;
    for (const Dtype dtype : dtypes) check(shape, dtype, a, b, roundings / (1 - roundings));
  }
}

TEST_CASE("an operand may lie at the beginning of a longer view, between others' elements") {
  const Tensor memory(Device::cpu, Kind::data, Dtype::bf16, 2 + 6 + 2);
  fill(memory.view(), [](std::int64_t i) { return i < 2 || i >= 8 ? NAN : i - 1; });
  const View weight = memory.view().part(2, 8);  // 1 .. 6 and a bias that must not be read
  const Shape shape{2, 3, 2};
  const std::vector<float> squares = product(shape, {weight, 3}, {weight, 3, true});
  CHECK(squares == std::vector<float>{14, 32, 32, 77});
}

TEST_CASE("what is infinite or not a number stays so") {
  const Tensor memory(Device::cpu, Kind::data, Dtype::fp16, 4);
  fill(memory.view(), [](std::int64_t i) { return i == 0 ? INFINITY : i == 3 ? NAN : 1; });
  const Tensor ones(Device::cpu, Kind::data, Dtype::fp16, 2);
  fill(ones.view(), 1);
  std::vector<float> panel(matmul_panel, NAN);  // left over from whoever had it before
  matmul({memory.view(), 2}, {ones.view(), 1}, 2, 2, 1, panel, [&](const RowPart& part) {
    if (part.at == 0) CHECK(part.values[0] == INFINITY);
    if (part.at == 1) CHECK(std::isnan(part.values[0]));
  });
  matmul({ones.view(), 2}, {ones.view(), 1}, 1, 2, 1, panel,
         [&](const RowPart& part) { CHECK(part.values[0] == 2); });
}

TEST_CASE("a product keeps to its panel") {
  constexpr std::size_t beyond = 64;
  std::vector<float> panel(matmul_panel + beyond, 7);
  const Shape shape{257, 385, 257};
  const auto one = [](std::int64_t) { return 1.0f; };
  const Stored a(Dtype::bf16, shape.rows, shape.inner, false, one);
  const Stored b(Dtype::bf16, shape.inner, shape.columns, true, one);
  const auto ignore = [](const RowPart&) {};
  const std::span<float> exact = std::span(panel).first(matmul_panel);
  matmul(a.operand, b.operand, shape.rows, shape.inner, shape.columns, exact, ignore);
  for (std::size_t i = matmul_panel; i < panel.size(); ++i) CHECK(panel[i] == 7);
  const std::span<float> short_one = exact.first(matmul_panel - 1);
  CHECK_THROWS_AS(matmul(a.operand, b.operand, 1, 1, 1, short_one, ignore), std::logic_error);
}
}  // namespace zero::test
