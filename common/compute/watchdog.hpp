// SPDX-License-Identifier: MIT
// A thread that ends the job, with a sentence, when a task stands still as a rank or device hangs.
#pragma once
#include <functional>
#include <thread>

#include "compute/work.hpp"

namespace zero {
/// The calling thread is within a task, for as long as this lives; within another it is part of it.
class Working {
 public:
  explicit Working(const Work& work = {}, const char* stream = nullptr);
  ~Working();
  Working(const Working&) = delete;

 private:
  const bool part_;
};

/// The calling task waits for messages from those ranks.
void task_waits_for(std::vector<int> ranks);
/// Calls `rest` for the calling task, which is to last so long: it does not stand still.
void task_rests(const std::function<void()>& rest);
/// The calling task has handed itself to its device, which is done with it when the mark is passed.
void task_queued(Mark mark);

/// Calls `expire` once, with an Error (communication), when a task has run for `limit`; time in
/// which the process is suspended does not count. One at a time.
std::jthread watchdog(std::chrono::milliseconds limit, std::function<void(const Error&)> expire);
}  // namespace zero
