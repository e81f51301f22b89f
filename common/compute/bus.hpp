// SPDX-License-Identifier: MIT
// Copies, and what bytes take on a bus or a network slower than the one that is there.
#pragma once
#include <algorithm>

#include "compute/stream.hpp"
#include "memory/call_site.hpp"

namespace zero {
/// So many nanoseconds, 30 years at most: the clock counts no end of them.
inline std::chrono::nanoseconds modelled_time(double nanoseconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, 1e18)));
}

/// A network between ranks, slower than the one that is there.
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

/// Sleeps, but spins the last 100 microseconds: sleepers wake late, a yield costs a time slice.
void sleep_precisely_until(std::chrono::steady_clock::time_point end);

/// Calls `move` in a stream's task, then sleeps until `way` would be done. No time: no model.
void move_over(const char* way, std::chrono::nanoseconds time, Kernels& on, const auto& move) {
  if (time.count() == 0) return move();
  wait_for(on.record());  // what a GPU sends, it may have to make yet
  const auto arrival = std::chrono::steady_clock::now() + time;
  move();
  wait_for(on.record());
  Stream::part({way, Work::Type::wait}, [=] { sleep_precisely_until(arrival); });
}

/// Of one copy over a modelled bus.
inline std::chrono::nanoseconds time_over(const Bus& bus, std::int64_t bytes) {
  return modelled_time(bus.gb_per_s > 0 ? static_cast<double>(bytes) / bus.gb_per_s : 0);
}

/// to = from, of one size and dtype. Between a device, or a disk, and the host its bus takes it and
/// counts its bytes; the stream is the device's, or the disk's.
inline void copy(Stream& stream, ConstView from, View to, CallSite = {}) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both sides are of one kind");
  Kernels& on = stream.kernels();
  if (from.place() == to.place()) {
    return stream.run(work_on("copy", {from}, {to}, Work::Type::copy),
                      [=, &on] { on.copy(from, to); });
  }
  const Direction direction = direction_to(to.place());
  Work work = work_on("", {from}, {to}, Work::Type::transfer);
  work.what = copy_names[work.bus()][direction];
  expect(work.bus() == stream.device().place, "a copy on a stream of the device, or of the disk");
  const char* const way = work.bus() == Place::disk ? "the disk" : "the bus";
  stream.run(work, [=, &on, &bus = stream.device().bus] {
    move_over(way, time_over(bus, to.bytes()), on, [&] { on.copy(from, to); });
    bus.bytes[direction] += to.bytes();
  });
}
}  // namespace zero
