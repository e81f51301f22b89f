// SPDX-License-Identifier: MIT
// A network slower than the one that is there: what each collective takes on it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace zero {
struct Link {
  double gbit_per_s = 0;  // that a rank sends, 10^9 bits; 0: no end of it
  double latency_us = 0;  // until a message to one other rank begins to arrive

  /// False: collectives are as fast as they are.
  bool modelled() const { return gbit_per_s > 0 || latency_us > 0; }

  /// Of a collective over a vector of so many bytes, of which each rank sends 1/N to each of the
  /// N - 1 others, one after the other: (N - 1) (latency + bytes / (N bandwidth)).
  std::chrono::nanoseconds time(std::int64_t bytes, std::int64_t ranks) const {
    const double part = static_cast<double>(bytes) / static_cast<double>(ranks);
    const double sending = gbit_per_s > 0 ? 8 * part / gbit_per_s : 0;
    const double total = static_cast<double>(ranks - 1) * (1000 * latency_us + sending);
    return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(total, 1e18)));
  }
};
}  // namespace zero
