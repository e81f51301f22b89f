// SPDX-License-Identifier: MIT
// The first steps of a run as one file for ui.perfetto.dev: all ranks, by one clock.
#pragma once
#include "comm/communicator.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// What is to be added to this rank's clock to make it rank 0's, and how wrong that may be.
struct ClockOffset {
  std::chrono::nanoseconds offset{}, error{};
};

/// All ranks must call it, when the streams are idle; now: what this rank's clock says. As NTP does
/// it (RFC 5905, section 8): rank 0 reads its clock T0 between two readings of this rank's, and the
/// offset is T0 - (before + after) / 2, by the round that took least, wrong by half of it at most.
ClockOffset clock_offset(Communicator& comm,
                         const std::function<Clock::time_point()>& now = Clock::now);

/// The slices of Recorder's traced steps and the bytes that were booked, in the Trace Event Format
/// (JSON), on rank 0; empty on others. All ranks must call it, when the streams are idle. Times are
/// microseconds by rank 0's clock since the first event of all.
std::string chrome_trace(const Slices& slices, const std::vector<Booked>& booked,
                         const char* chapter, Dtype dtype, ClockOffset clock, Communicator& comm);
}  // namespace zero
