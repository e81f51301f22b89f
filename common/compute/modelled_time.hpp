// SPDX-License-Identifier: MIT
// A network or a bus slower than the one that is there: what bytes take on it, and how a task takes
// as long.
#pragma once
#include <algorithm>

#include "compute/stream.hpp"

namespace zero {
/// So many nanoseconds, 30 years at most: the clock counts no end of them.
inline std::chrono::nanoseconds modelled_time(double nanoseconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, 1e18)));
}

/// A network between ranks.
struct Link {
  double gbit_per_s = 0;  // that a rank sends, 10^9 bits; 0: no end of it
  double latency_us = 0;  // until a message to one other rank begins to arrive

  /// Of a collective over a vector of so many bytes, of which each rank sends 1/N to each of the
  /// N - 1 others, one after the other: (N - 1) (latency + bytes / (N bandwidth)).
  std::chrono::nanoseconds time(std::int64_t bytes, std::int64_t ranks) const {
    const double part = static_cast<double>(bytes) / static_cast<double>(ranks);
    const double sending = gbit_per_s > 0 ? 8 * part / gbit_per_s : 0;
    return modelled_time(static_cast<double>(ranks - 1) * (1000 * latency_us + sending));
  }
};

/// Leaves the core to others, but for the last 100 microseconds: sleepers wake so late. (To yield
/// instead would cost a whole time slice where others want the core.)
inline void sleep_precisely_until(std::chrono::steady_clock::time_point end) {
  std::this_thread::sleep_until(end - std::chrono::microseconds(100));
  while (std::chrono::steady_clock::now() < end) continue;
}

/// Calls `move`, which hands bytes over within a stream's task, and lets the task sleep until the
/// modelled way of that name would have brought them. No time: nothing is modelled.
inline void move_over(const char* way, std::chrono::nanoseconds time, Kernels& on,
                      const std::function<void()>& move) {
  if (time.count() == 0) return move();
  wait_for(on.record());  // what a GPU sends, it may have to make yet
  const auto arrival = std::chrono::steady_clock::now() + time;
  move();
  wait_for(on.record());
  Stream::part({way, Work::Sort::wait},
               [=] { task_rests([=] { sleep_precisely_until(arrival); }); });
}
}  // namespace zero
