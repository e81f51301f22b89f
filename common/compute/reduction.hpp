// SPDX-License-Identifier: MIT
// The numbers that a step is judged by, and the element-wise work on gradients.
#pragma once
#include "compute/stream.hpp"
#include "memory/tensor.hpp"

namespace zero {

/// Waits for the stream: then the sums are what was added up.
void fetch(Stream& stream, Sums& sums);

/// Puts both sums back to zero.
void clear(Stream& stream, Sums& sums);

/// x / divisor for every element, rounded once. A true division: 1 / 3 times x is not x / 3.
void divide(Stream& stream, View values, int divisor);

/// Adds the sum of squares, formed in double, to sums.totals.squares.
void squared_norm(Stream& stream, View values, Sums& sums);

/// to = from. Same size, same dtype.
void copy(Stream& stream, View from, View to);

}  // namespace zero
