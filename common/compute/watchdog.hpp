// SPDX-License-Identifier: MIT
// The watchdog ends the job, with a sentence, when no task ends any more.
#pragma once
#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "compute/here.hpp"

namespace zero {
/// While a TaskScope lives, its thread performs a task. A task within a task is part of the outer.
class TaskScope {
 public:
  explicit TaskScope(const Work& work = {}, const char* stream = nullptr);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;

  const Work work;
  const char* const stream;  // the task's stream; null: the host's own thread
};

/// Tells the watchdog that the calling thread's task waits for these ranks, which it names at a
/// standstill. A loop that waits calls this in each round.
void waits_for(const std::set<int>& ranks);

/// Calls `expire` once, with an Error (communication), when tasks run and for `limit`, or 1 s more,
/// none has ended. Time in which the process is suspended does not count. It calls no driver: a
/// driver may not answer while a launch waits for room in a GPU's queue. One watchdog at a time.
std::jthread watchdog(std::chrono::milliseconds limit, std::function<void(const Error&)> expire);
}  // namespace zero
