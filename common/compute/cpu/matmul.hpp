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

/// Calls an element-wise loop: on x86 compiled for AVX2, if it is there. Nothing becomes an FMA.
template <class Loop> void on_wide_vectors(const Loop& loop) {
  static const bool wide = &micro_kernel() != &plain;
  wide ? with_wide_vectors(loop) : loop();
}

/// `count` elements of row `row` of a product, from column `column` on.
struct RowPart {
  std::int64_t row, column, count;
  const float* values;
};

/// Forms a (rows x inner) times b (inner x columns), none of these 0, and hands each element to
/// `store` once. Takes 0.4 MB of the caller's stack.
void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, const std::function<void(const RowPart&)>& store);

/// The same, formed in `result`, which is neither operand: one copy less. result_row: elements
/// between the starts of its rows. Throws std::logic_error when columns is no multiple of 16.
void matmul(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows, std::int64_t inner,
            std::int64_t columns, float* result, std::int64_t result_row);
}  // namespace zero
