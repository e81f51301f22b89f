// SPDX-License-Identifier: MIT
// The numbers that a step is judged by, and the element-wise work on gradients: tasks of a stream.
#pragma once
#include "compute/stream.hpp"
#include "memory/error.hpp"

namespace zero {
/// Waits for the stream: then the sums are what was added up.
inline void fetch(Stream& stream, Sums& sums) {
  stream.run({"sums for the host"}, [&on = stream.kernels(), &sums] { on.fetch(sums); });
  stream.synchronise();
}

/// Puts both sums back to zero.
inline void clear(Stream& stream, Sums& sums) {
  stream.run({"clear"}, [&on = stream.kernels(), &sums] { on.clear(sums); });
}

/// x / divisor for every element, rounded once. A true division: 1 / 3 times x is not x / 3.
inline void divide(Stream& stream, View values, int divisor) {
  if (divisor == 1) return;
  stream.run(work_on("divide", values),
             [=, &on = stream.kernels()] { on.divide(values, divisor); });
}

/// Adds the sum of squares, formed in double, to sums.totals.squares.
inline void squared_norm(Stream& stream, View values, Sums& sums) {
  stream.run(work_on("squared_norm", values),
             [=, &on = stream.kernels(), &sums] { on.squared_norm(values, sums); });
}
}  // namespace zero
