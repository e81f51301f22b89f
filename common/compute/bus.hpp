// SPDX-License-Identifier: MIT
// Copies, and the bus between a device's memory and the host's, which some of them take.
#pragma once
#include <array>
#include <atomic>

#include "compute/stream.hpp"

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
    const double ns = gb_per_s > 0 ? static_cast<double>(copied) / gb_per_s : 0;
    return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(ns, 1e18)));
  }
};
inline Bus& bus() {
  static Bus of_this_process;
  return of_this_process;
}

/// to = from. Same size, same dtype. Between the host and the device it takes the bus: counted
/// there when the stream issues it. (What a GPU's messages between ranks pass through the host is
/// not: it is part of those.)
void copy(Stream& stream, View from, View to);
}  // namespace zero
