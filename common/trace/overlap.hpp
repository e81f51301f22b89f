// SPDX-License-Identifier: MIT
// How much of the time of messages, and of copies over the bus, a step waits for, and how much
// passes beside computation.
#pragma once
#include "compute/bus.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// While the device computed nothing, and while it did.
struct OverlapTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
struct OverlapTimes {
  std::array<OverlapTime, phase_count> messages;  // by the phase for which they were sent
  std::array<OverlapTime, 2> transfers;  // over the bus, by Direction
};

/// Of the messages and the transfers of one step. tracks: all of what overlaps them, of other steps
/// too: the one before may still compute when the first ones pass, the next when the last ones do.
OverlapTimes overlap_times(const Slices& tracks, int step);

/// Sorts slices into steps, and keeps of a step these times alone.
class OverlapMeter {
 public:
  /// present: the step in which they were taken. Those before it are complete: what was taken until
  /// then has their slices, which may come later than they end on the host.
  void add(const Slices& taken, int present);

  std::vector<OverlapTimes> steps;  // the complete ones

 private:
  Slices recent_;  // of the last complete step and of later ones
};
}  // namespace zero
