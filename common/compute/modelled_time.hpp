// SPDX-License-Identifier: MIT
// How long a modelled link or bus is waited for.
#pragma once
#include "compute/watchdog.hpp"

namespace zero {
/// Leaves the core to others, but for the last 100 microseconds: sleepers wake so late. (To yield
/// instead would cost a whole time slice where others want the core.)
inline void sleep_precisely_until(std::chrono::steady_clock::time_point end) {
  std::this_thread::sleep_until(end - std::chrono::microseconds(100));
  while (std::chrono::steady_clock::now() < end) continue;
}

/// The same in a task, however long it takes: the watchdog is told that this is no standing still.
inline void wait_in_task_until(std::chrono::steady_clock::time_point end) {
  while (end - std::chrono::steady_clock::now() > std::chrono::seconds(1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    task_goes_on();
  }
  sleep_precisely_until(end);
}
}  // namespace zero
