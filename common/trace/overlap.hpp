// SPDX-License-Identifier: MIT
// How much of the messages, and of copies over the bus, passes while the device computes.
#pragma once
#include <span>

#include "trace/recorder.hpp"

namespace zero {
/// Of messages, or of copies over a bus: while the device computed nothing, and while it did.
struct OverlapTime {
  std::chrono::nanoseconds exposed{}, hidden{};
};
struct OverlapTimes {
  By<Phase, OverlapTime> messages;  // by the phase for which they were sent
  By<Place, By<Direction, OverlapTime>> transfers;  // by whose bus they take
};

/// Of one step's messages and transfers. slices: all that may overlap them, of other steps, too.
OverlapTimes overlap_times(std::span<const Slice> slices, int step);

/// The latest figures of so many steps at most, in no order, however long the run is.
template <class Figure> struct Latest {
  static constexpr std::int64_t most = 4096;

  void add(const Figure& figure) {
    if (steps < most) kept.push_back(figure);
    kept[steps++ % most] = figure;
  }
  std::vector<Figure> kept{};
  std::int64_t steps = 0;  // that gave one
};

/// Sorts slices into steps, and keeps of a step these times alone.
class OverlapMeter {
 public:
  /// present: the step in which they were taken; earlier ones have all their slices by then.
  void add(std::span<const Slice> taken, int present);

  Latest<OverlapTimes> times;  // of complete steps

 private:
  int next_ = 0;  // the step whose times come next; 0: the first one is not known
  std::vector<Slice> recent_;  // of the last complete step and of later ones
};
}  // namespace zero
