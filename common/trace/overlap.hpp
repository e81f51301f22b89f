// SPDX-License-Identifier: MIT
// How much of the messages' time a step waits for, and how much passes beside computation.
#pragma once
#include <map>

#include "trace/recorder.hpp"

namespace zero {
/// Times of messages: while nothing computed, and while something did.
struct MessageTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
using MessageTimes = std::array<MessageTime, phase_count>;

/// Sorts slices into steps. Those of a step may come later than it ends on the host.
class MessageMeter {
 public:
  /// present: the step in which they were taken; those before it are complete.
  void add(const Slices& taken, int present);

  /// In microseconds, by phase, of each complete step.
  std::array<std::vector<std::int64_t>, phase_count> exposed, hidden;

 private:
  std::map<int, Slices> incomplete_;  // by step
};

/// By the phase for which they were sent. tracks: all of what overlaps a message, which overlap
/// none of each other.
MessageTimes message_times(const Slices& tracks);
}  // namespace zero
