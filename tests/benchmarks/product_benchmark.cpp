// SPDX-License-Identifier: MIT
// The three products of a linear layer against OpenBLAS's, in fp32 on one thread: medians of rounds
// that alternate, and their ratio. Exit code 1 when a layer's three together take more than 1.10 of
// OpenBLAS's time. Both take the instruction set that ZERO_VECTORS and OPENBLAS_CORETYPE name.
#include <cblas.h>
#include <fmt/format.h>

#include "compute/cpu/matmul.hpp"
#include "compute/generator.hpp"
#include "tests/benchmarks/benchmark.hpp"

namespace {
using namespace zero;

struct Product {
  std::int64_t rows, inner, columns;
  bool transpose_a, transpose_b;
};

std::vector<float> numbers(std::int64_t size) {
  std::vector<float> values(size);
  const Generator random(1, RandomStream::weights);
  for (std::int64_t i = 0; i < size; ++i) values[i] = random.uniform(i);
  return values;
}

/// Ours and OpenBLAS's, in ms.
std::pair<double, double> measure(const Product& p) {
  constexpr int rounds = 25;
  constexpr std::int64_t least = 20'000'000;  // multiplications a round
  const int times = static_cast<int>(least / (p.rows * p.inner * p.columns)) + 1;
  std::vector<float> a = numbers(p.rows * p.inner), b = numbers(p.inner * p.columns);
  std::vector<float> result(p.rows * p.columns), theirs(result);
  const auto matrix = [](std::vector<float>& values, std::int64_t row, bool transposed) {
    const std::int64_t size = std::ssize(values);
    return Matrix{{reinterpret_cast<std::byte*>(values.data()), size, size}, row, transposed};
  };
  const Matrix left = matrix(a, p.transpose_a ? p.rows : p.inner, p.transpose_a);
  const Matrix right = matrix(b, p.transpose_b ? p.inner : p.columns, p.transpose_b);
  const auto our_product = [&] {
    // The gradient of a weight, which programs form in its place.
    if (p.transpose_a)
      return matmul(left, right, p.rows, p.inner, p.columns, result.data(), p.columns);
    matmul(left, right, p.rows, p.inner, p.columns, [&](const RowPart& part) {
      std::copy_n(part.values, part.count, result.data() + part.row * p.columns + part.column);
    });
  };
  const auto operation = [](const Matrix& of) { return of.transposed ? CblasTrans : CblasNoTrans; };
  const auto their_product = [&] {
    cblas_sgemm(CblasRowMajor, operation(left), operation(right), p.rows, p.columns, p.inner, 1,
                a.data(), left.columns, b.data(), right.columns, 0, theirs.data(), p.columns);
  };
  std::vector<double> times_of_ours, times_of_theirs;
  const auto time = [&](auto work) {
    return milliseconds([&] {
             for (int i = 0; i < times; ++i) work();
           }) /
           times;
  };
  for (int round = 0; round < rounds; ++round) {
    times_of_ours.push_back(time(our_product));
    times_of_theirs.push_back(time(their_product));
  }
  return {median(times_of_ours), median(times_of_theirs)};
}
}  // namespace

int main() {
  try {
    micro_kernel();
  } catch (const std::exception& missing) {
    fmt::print("{}\n", missing.what());
    return 77;  // skipped
  }
  openblas_set_num_threads(1);
  fmt::print(
      "products with {} against OpenBLAS's {}; bar of a layer's three together: "
      "1.10\n\n{:>7}{:>8}{:>9}{:>10}{:>9}{:>7}\n",
      micro_kernel().name, openblas_get_corename(), "batch", "inputs", "outputs", "ms", "theirs",
      "ratio");
  bool good = true;
  for (const auto& [batch, inputs, outputs] : {std::array<std::int64_t, 3>{32, 2048, 2048},
                                               {32, 512, 512},
                                               {32, 256, 256},
                                               {64, 1024, 1024}}) {
    double all = 0, all_theirs = 0;
    // x W^T, dy^T x and dy W.
    for (const Product& product : {Product{batch, inputs, outputs, false, true},
                                   {outputs, batch, inputs, true, false},
                                   {batch, outputs, inputs, false, false}}) {
      const auto [ours, theirs] = measure(product);
      all += ours;
      all_theirs += theirs;
    }
    fmt::print("{:>7}{:>8}{:>9}{:>10.3f}{:>9.3f}{:>7.2f}\n", batch, inputs, outputs, all,
               all_theirs, all / all_theirs);
    good = good && all <= 1.10 * all_theirs;
  }
  return good ? 0 : 1;
}
