// SPDX-License-Identifier: MIT
// Copies, and the bus between a device's memory and the host's, which some of them take.
#pragma once
#include <array>
#include <atomic>

#include "compute/modelled_time.hpp"
#include "memory/error.hpp"

namespace zero {
enum class Direction { down, up };  // to the host, to the device
template <> inline constexpr std::array names_of<Direction>{"down", "up"};

/// Of a copy over the bus to that place.
constexpr Direction direction_to(Place place) {
  return place == Place::host ? Direction::down : Direction::up;
}

/// This process's. Read it when the streams are idle.
struct Bus {
  double gb_per_s = 0;  // modelled: no copy is faster, 10^9 bytes; 0: each as fast as it is
  std::array<std::atomic<std::int64_t>, 2> bytes{};  // copied, by Direction

  std::int64_t of(Direction direction) const { return bytes[static_cast<int>(direction)]; }
  /// Of one copy, on the modelled bus.
  std::chrono::nanoseconds time(std::int64_t copied) const {
    return modelled_time(gb_per_s > 0 ? static_cast<double>(copied) / gb_per_s : 0);
  }
};
inline Bus& bus() {
  static Bus of_this_process;
  return of_this_process;
}

/// to = from. Same size, same dtype. Between the host and the device it takes the bus: counted
/// there when the stream issues it. (What a GPU's messages between ranks pass through the host is
/// not: it is part of those.)
inline void copy(Stream& stream, View from, View to) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both sides are of one kind");
  Kernels& on = stream.kernels();
  if (place_of(from.device) == place_of(to.device)) {
    return stream.run(work_on("copy", to, Work::Sort::copy), [=, &on] { on.copy(from, to); });
  }
  const Direction direction = direction_to(place_of(to.device));
  stream.run(work_on(name_of(direction), to, Work::Sort::transfer), [=, &on] {
    move_over("the bus", bus().time(to.bytes()), on, [&] { on.copy(from, to); });
    bus().bytes[static_cast<int>(direction)] += to.bytes();
  });
}
}  // namespace zero
