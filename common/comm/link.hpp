// SPDX-License-Identifier: MIT
// A link between ranks: how long a collective takes on it.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>

namespace zero {
/// What every rank has one of, to send on.
struct Link {
  double gbit_per_s = 0;
  double latency_us = 0;

  /// One collective of a vector of so many bytes: a rank sends one part, 1/N of it, to each of the
  /// N - 1 others, one after the other: (N - 1) (latency + bytes / (N bandwidth)).
  std::chrono::nanoseconds time(std::int64_t bytes_of_whole_vector, int ranks) const {
    const double ns_a_byte = 8 / gbit_per_s;
    const double part = static_cast<double>(bytes_of_whole_vector) / ranks;
    return std::chrono::nanoseconds(
        std::llround((ranks - 1) * (1e3 * latency_us + part * ns_a_byte)));
  }
};
}  // namespace zero
