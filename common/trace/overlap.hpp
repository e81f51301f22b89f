// SPDX-License-Identifier: MIT
// How much of the messages' time a step waits for, and how much passes beside computation.
#pragma once
#include "trace/recorder.hpp"

namespace zero {
/// Times of messages: while nothing computed, and while something did.
struct MessageTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
using MessageTimes = std::array<MessageTime, phase_count>;

/// By the phase for which they were sent. tracks: slices in the order of their ends, no two of
/// which overlap that compute or that send within one track; all of what overlaps a message.
MessageTimes message_times(const Slices& tracks);
}  // namespace zero
