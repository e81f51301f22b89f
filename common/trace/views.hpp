// SPDX-License-Identifier: MIT
// What can be told from a recording: how much of the messages' time a step waits for, what was in
// use after each phase, a file for ui.perfetto.dev, and one step of a small model in words.
#pragma once
#include <span>

#include "comm/communicator.hpp"
#include "compute/bus.hpp"
#include "memory/state.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// Of messages, or of copies over the bus: while the device computed nothing, and while it did.
struct OverlapTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
struct OverlapTimes {
  By<Phase, OverlapTime> messages;  // by the phase for which they were sent
  By<Direction, OverlapTime> transfers;  // over the bus
};

/// Of the messages and the transfers of one step. slices: all of what overlaps them, of other steps
/// too: the one before may still compute when the first ones pass, the next when the last ones do.
OverlapTimes overlap_times(std::span<const Slice> slices, int step);

/// Sorts slices into steps, and keeps of a step these times alone.
class OverlapMeter {
 public:
  /// present: the step in which they were taken. Those before it are complete: what was taken until
  /// then has their slices, which may come later than they end on the host.
  void add(std::span<const Slice> taken, int present);

  std::vector<OverlapTimes> steps;  // the complete ones

 private:
  std::vector<Slice> recent_;  // of the last complete step and of later ones
};

/// All in bytes.
struct MemoryPhase {
  int step;
  Phase phase;
  By<Kind, std::int64_t> bytes{};  // in use at its end
  std::int64_t in_use = 0;  // all of them together
  std::int64_t change = 0;  // since the end of the row before
  std::int64_t peak = 0;  // the most that was in use within it
};

/// A row for the set-up, then one for each of load, forward, backward and update, of the first step
/// and of the second if there are so many. Of several micro-batches the end is the last one's, the
/// peak that of all. Of forward, load is no part. A phase without bookings ends as it began.
/// booked: by one rank, in order, with both steps whole.
std::vector<MemoryPhase> memory_phases(std::span<const Booked> booked, int steps);

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
std::string chrome_trace(const Recording& seen, const char* chapter, Dtype dtype, ClockOffset clock,
                         Communicator& comm);

/// Which rank owns each element of each layer, and what this rank holds throughout.
std::string holdings(const Layout& layout, Device& device);

/// The first step: what is computed, sent and taken and given back, in the order in which it was,
/// and the values that each rank then has; on rank 0, empty on others. All ranks must call it, when
/// the streams are idle. seen: all slices of a step whose streams are one after the other, with
/// values.
std::string narration(Recording seen, const Layout& layout, Communicator& comm);
}  // namespace zero
