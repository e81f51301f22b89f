// SPDX-License-Identifier: MIT
// Copies, and the time that bytes take on a modelled bus or network, slower than the real one.
#pragma once
#include <algorithm>

#include "compute/stream.hpp"
#include "memory/call_site.hpp"

namespace zero {
/// Returns the duration, cut to 10^18 ns (31 years): added to a clock's time it fits into 64 bits.
inline std::chrono::nanoseconds modelled_time(double nanoseconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, 1e18)));
}

/// A modelled network between ranks, slower than the real one.
struct Link {
  double gbit_per_s = 0;  // a rank sends so many 10^9 bits/s; 0: no limit
  double latency_us = 0;  // microseconds until a message to one other rank begins to arrive

  /// Returns the time of a collective over a vector of `bytes`. Each of N ranks sends bytes / N to
  /// each other rank, one message after the other: (N - 1) (latency + bytes / (N bandwidth)).
  std::chrono::nanoseconds time(std::int64_t bytes, std::int64_t ranks) const {
    const double part = static_cast<double>(bytes) / static_cast<double>(ranks);
    const double sending = gbit_per_s > 0 ? 8 * part / gbit_per_s : 0;
    return modelled_time(static_cast<double>(ranks - 1) * (1000 * latency_us + sending));
  }
};

/// Sleeps, but spins for the last 100 us: a sleeping thread wakes late, as does one that yields.
void sleep_precisely_until(std::chrono::steady_clock::time_point end);

/// Call it in a stream's task. Calls move() and then, unless `time` is 0, sleeps until `time` has
/// passed since move() began. on: the stream's kernels. way: the name of the sleep in traces.
void move_over(const char* way, std::chrono::nanoseconds time, Kernels& on, const auto& move) {
  if (time.count() == 0) return move();
  wait_for(on.record());  // a GPU may still be computing what is moved
  const auto arrival = std::chrono::steady_clock::now() + time;
  move();
  wait_for(on.record());
  Stream::part({way, Work::Type::wait}, [=] { sleep_precisely_until(arrival); });
}

/// Returns the time of one copy over a modelled bus; 0 if there is no model.
inline std::chrono::nanoseconds time_over(const Bus& bus, std::int64_t bytes) {
  return modelled_time(bus.gb_per_s > 0 ? static_cast<double>(bytes) / bus.gb_per_s : 0);
}

/// Queues to = from, of equal size and dtype. A copy between host and device needs a stream of the
/// device, one between host and disk the disk's: the stream's bus sets the time and counts bytes.
inline void copy(Stream& stream, ConstView from, View to, CallSite = {}) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both have one size and dtype");
  Kernels& on = stream.kernels();
  if (from.place() == to.place()) {
    return stream.run(work_on("copy", {from}, {to}, Work::Type::copy),
                      [=, &on] { on.copy(from, to); });
  }
  const Direction direction = direction_to(to.place());
  Work work = work_on("", {from}, {to}, Work::Type::transfer);
  work.what = copy_names[work.bus()][direction];
  expect(work.bus() == stream.device().place, "copy: use a stream of the device or disk");
  const char* const way = work.bus() == Place::disk ? "the disk" : "the bus";
  stream.run(work, [=, &on, &bus = stream.device().bus] {
    move_over(way, time_over(bus, to.bytes()), on, [&] { on.copy(from, to); });
    bus.bytes[direction] += to.bytes();
  });
}
}  // namespace zero
