// SPDX-License-Identifier: MIT
// What was in use after each phase, from the list of bookings; and what the system says that the
// process holds beside that.
#pragma once
#include <span>

#include "trace/recorder.hpp"

namespace zero {
/// All in bytes.
struct MemoryPhase {
  int step;
  Phase phase;
  std::array<std::int64_t, kind_count> bytes{};  // in use at its end, by kind
  std::int64_t in_use = 0;  // all of them together
  std::int64_t change = 0;  // since the end of the row before
  std::int64_t peak = 0;  // the most that was in use within it
};

/// A row for the set-up, then one for each of load, forward, backward and update, of the first step
/// and of the second if there are so many. Of several micro-batches the end is the last one's, the
/// peak that of all. Of forward, load is no part. A phase without bookings ends as it began.
/// booked: by one rank, in order, with both steps whole.
std::vector<MemoryPhase> memory_phases(std::span<const Booked> booked, int steps);

/// At one moment, in bytes.
struct Footprint {
  std::int64_t peak = 0;  // of the process's own memory, until then
  std::int64_t total = 0;  // the same; on a GPU what is in use there, whoever uses it
  std::int64_t tensors = 0;  // as the ledgers have them reserved, where the device computes
  std::int64_t rounding = 0;  // what those take beyond that, in whole huge pages
  std::int64_t other = 0;  // private memory, or what is in use on the GPU, that is no tensor's
  std::int64_t files = 0, shared = 0;  // on a GPU none
};

/// Now. On a GPU the driver is asked too.
Footprint footprint(Device device);
}  // namespace zero
