// SPDX-License-Identifier: MIT
// The numbers that a step is judged by, and the element-wise work on gradients.
#pragma once
#include "stream.hpp"
#include "tensor.hpp"

namespace zero {

/// This rank's two sums of a step; they are read once.
struct Sums {
  double loss = 0;  // of the micro-batches' mean losses
  double squares = 0;  // of this rank's part of the gradients, scaled as they are
};

/// Puts both sums back to zero.
void clear(Stream& stream, Sums& sums);

/// x / divisor for every element, rounded once. A true division: 1 / 3 times x is not x / 3.
void divide(Stream& stream, View values, int divisor);

/// Adds the sum of squares to sums.squares: eight lanes in double, element i in lane i mod 8.
void squared_norm(Stream& stream, View values, Sums& sums);

/// to = from. Same size, same dtype.
void copy(Stream& stream, View from, View to);

}  // namespace zero
