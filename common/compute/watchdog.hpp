// SPDX-License-Identifier: MIT
// The watchdog ends the job, with a sentence, when no task ends any more.
#pragma once
#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "compute/here.hpp"

namespace zero {
/// While it lives, the calling thread performs a task. A task within another is part of that one.
class TaskScope {
 public:
  explicit TaskScope(const Work& work = {}, const char* stream = nullptr);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;

  const Work work;
  const char* const stream;  // the task's stream; null: the host's own thread
};

/// The calling thread's task waits for those ranks. A loop that waits calls this in each round: at
/// a standstill the watchdog names these ranks.
void waits_for(const std::set<int>& ranks);

/// Calls `expire` once, with an Error (communication), when tasks have begun and for `limit` none
/// has ended. Time in which the process is suspended does not count. It calls no driver, because a
/// driver may not answer while a launch waits for room in a GPU's queue. One watchdog at a time.
std::jthread watchdog(std::chrono::milliseconds limit, std::function<void(const Error&)> expire);
}  // namespace zero
