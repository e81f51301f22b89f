// SPDX-License-Identifier: MIT
// Views of a recording: overlap, memory by phase, a file for ui.perfetto.dev, a step in words.
#pragma once
#include <span>

#include "comm/communicator.hpp"
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

/// Of one step's messages and transfers. slices: all that may overlap them, of other steps, too.
OverlapTimes overlap_times(std::span<const Slice> slices, int step);

/// Of what each step gives so many at most, evenly over the run, however long that is: when there
/// is no room every second one goes, and from then on half as many come.
template <class Figure> class Spread {
 public:
  static constexpr std::int64_t most = 4096;

  void add(const Figure& figure) {
    if (steps_++ % stride_ != 0) return;
    if (std::ssize(kept_) == most) {
      for (std::int64_t i = 0; i < most / 2; ++i) kept_[i] = kept_[2 * i];
      kept_.resize(most / 2);
      stride_ *= 2;
    }
    kept_.push_back(figure);
  }
  const std::vector<Figure>& kept() const { return kept_; }
  std::int64_t steps() const { return steps_; }  // that gave one

 private:
  std::vector<Figure> kept_;
  std::int64_t steps_ = 0, stride_ = 1;
};

/// Sorts slices into steps, and keeps of a step these times alone.
class OverlapMeter {
 public:
  /// present: the step in which they were taken; earlier ones have all their slices by then.
  void add(std::span<const Slice> taken, int present);

  Spread<OverlapTimes> times;  // of complete steps

 private:
  int next_ = 0;  // the step whose times come next; 0: the first one is not known
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

/// A row for the set-up, then one a phase of the first two steps. With several micro-batches the
/// end is the last one's, the peak that of all; forward is without load. A phase without bookings
/// ends as it began. booked: one rank's, in order, both steps whole.
std::vector<MemoryPhase> memory_phases(std::span<const Booked> booked, int steps);

/// What is to be added to this rank's clock to make it rank 0's, and how wrong that may be.
struct ClockOffset {
  std::chrono::nanoseconds offset{}, error{};
};

/// All ranks must call it, streams idle. As NTP does (RFC 5905, section 8): rank 0 reads its clock
/// T0 between two readings of this one, `now`: T0 - (before + after) / 2, of the shortest round.
ClockOffset clock_offset(Communicator& comm,
                         const std::function<Clock::time_point()>& now = Clock::now);

/// Recorder's traced steps and bookings as Trace Event Format (JSON), on rank 0; empty on others.
/// All ranks must call it, streams idle. Microseconds of rank 0's clock since the first event.
std::string chrome_trace(const Recording& seen, const char* chapter, Dtype dtype, ClockOffset clock,
                         Communicator& comm);

/// Which rank owns each element of each layer, and what this rank holds throughout.
std::string holdings(const Layout& layout, Device& device);

/// The first step in words, with the values that each rank then has, on rank 0; empty on others.
/// All ranks must call it, streams idle. seen: all slices, with values, of streams run in turn.
std::string narration(Recording seen, const Layout& layout, Communicator& comm);
}  // namespace zero
