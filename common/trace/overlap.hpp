// SPDX-License-Identifier: MIT
// How much of the time of messages, and of copies over the bus, a step waits for, and how much
// passes beside computation.
#pragma once
#include <map>

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

/// Of the messages and the transfers of one step; of those of a sort none overlap each other.
/// tracks: all of what overlaps them; before, after: the same of the step before, which may still
/// compute when the first ones pass, and of the next, in which the last ones may.
OverlapTimes overlap_times(const Slices& tracks, int step, const Slices& before = {},
                           const Slices& after = {});

/// Sorts slices into steps. Those of a step may come later than it ends on the host.
class OverlapMeter {
 public:
  /// present: the step in which they were taken; those before it are complete.
  void add(const Slices& taken, int present);

  struct Times {
    std::vector<std::int64_t> exposed, hidden;  // in microseconds, of each complete step
  };
  std::array<Times, phase_count> messages;  // by phase
  std::array<Times, 2> transfers;  // by Direction

 private:
  std::map<int, Slices> steps_;  // from the one last measured on
  int measured_ = 0;  // the last step of which that has been done; 0 is before the first
};
}  // namespace zero
