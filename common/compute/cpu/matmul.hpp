// SPDX-License-Identifier: MIT
// Matrix products of any storage type in fp32. Element (i, j) is fma(a(i, k), b(k, j), sum) for
// k = 0, 1, 2 ..., from sum = +0: neither blocks nor the machine's instructions change a bit.
#pragma once
#include <functional>
#include <vector>

#include "compute/cpu/micro_kernel.hpp"
#include "compute/kernels.hpp"
#include "compute/machine.hpp"

namespace zero {
/// Returns the micro-kernels that this machine can run, the widest vectors first.
std::vector<const MicroKernel*> micro_kernels();

template <class Loop> [[WIDE_LOOP]] void with_wide_vectors(const Loop& loop) { loop(); }

/// Calls a loop: on x86 compiled for AVX2, but without FMAs, unless micro_kernel() is `plain`.
template <class Loop> void on_wide_vectors(const Loop& loop) {
  static const bool wide = &micro_kernel() != &plain;
  wide ? with_wide_vectors(loop) : loop();
}

/// Elements [column, column + count) of a product's row `row`.
struct RowPart {
  std::int64_t row, column, count;
  const float* values;
};

/// Forms a (rows x inner) times b (inner x columns), sizes above 0, and hands each element to
/// `store` once. Takes 0.4 MB of the caller's stack.
void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, const std::function<void(const RowPart&)>& store);

/// Forms the same product in `result`, apart from a and b: a copy less. result_row: elements from
/// row to row of `result`. Throws std::logic_error if `columns` is no multiple of 16.
void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, float* result, std::int64_t result_row);
}  // namespace zero
