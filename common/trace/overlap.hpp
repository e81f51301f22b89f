// SPDX-License-Identifier: MIT
// Measures for how much of the time of messages, and of copies over a bus, the device computes.
#pragma once
#include <span>

#include "trace/recorder.hpp"

namespace zero {
/// Time of messages, or of copies over a bus; hidden: while the device computes; exposed: the rest.
struct OverlapTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
struct OverlapTimes {
  By<Phase, OverlapTime> messages;  // by the phase that needs them
  By<Place, By<Direction, OverlapTime>> transfers;  // by bus: the device's or the disk's
};

/// Returns the times of one step. slices: all that may overlap its work, also of other steps.
OverlapTimes overlap_times(std::span<const Slice> slices, int step);

/// The figures of the latest 4096 steps, in no order.
template <class Figure> struct Latest {
  static constexpr std::int64_t most = 4096;  // bounds the memory that a long run needs

  void add(const Figure& figure) {
    if (steps < most) kept.push_back(figure);
    kept[steps++ % most] = figure;
  }
  std::vector<Figure> kept{};
  std::int64_t steps = 0;  // number of figures added so far
};

/// Measures the overlap of each step of a run, and keeps only the times, not the slices.
class OverlapMeter {
 public:
  /// taken: by Recorder::take() in step `present`. Measures the steps before `present` - 1, because
  /// the last slices of a step, 08's writes, may end in the next step, but not later.
  void add(std::span<const Slice> taken, int present);

  Latest<OverlapTimes> times;  // of steps that are complete

 private:
  int next_ = 0;  // the step that is measured next; 0: the first step is not known yet
  std::vector<Slice> recent_;  // slices of the last measured step and of later steps
};
}  // namespace zero
