// SPDX-License-Identifier: MIT
#include "compute/reduction.hpp"

#include "memory/error.hpp"

namespace zero {

void clear(Stream& stream, Sums& sums) {
  stream.run([&on = stream.kernels(), &sums] { on.clear(sums); });
}

void fetch(Stream& stream, Sums& sums) {
  stream.run([&on = stream.kernels(), &sums] { on.fetch(sums); });
  stream.synchronise();
}

void divide(Stream& stream, View values, int divisor) {
  if (divisor == 1) return;
  stream.run([=, &on = stream.kernels()] { on.divide(values, divisor); });
}

void squared_norm(Stream& stream, View values, Sums& sums) {
  stream.run([=, &on = stream.kernels(), &sums] { on.squared_norm(values, sums); });
}

void copy(Stream& stream, View from, View to) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both sides are of one kind");
  stream.run([=, &on = stream.kernels()] { on.copy(from, to); });
}

}  // namespace zero
