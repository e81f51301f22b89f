// SPDX-License-Identifier: MIT
// One thread that sees when nothing moves any more: a task that does not end, because another rank
// is stuck or stopped, or the device is. It ends the job with a sentence instead of letting
// everybody wait for ever.
#pragma once
#include <atomic>
#include <climits>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "compute/kernels.hpp"
#include "compute/phase.hpp"
#include "memory/error.hpp"

namespace zero {
/// What a thread is doing, for the functions below: in the watchdog's sight as long as it lives.
struct Progress {
  Progress();
  ~Progress();

  struct Label {
    const char* stream = nullptr;  // whose task it is; null: the host's
    Work work{};
    int step = current_step;
    Phase phase = current_phase;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    std::vector<int> missing{};  // ranks whose part has not come
    Mark done{};  // the device's, when it was handed to one
  };
  static constexpr int idle = INT_MAX;

  std::atomic<int> began = idle;  // the present task, by the watchdog's ticks
  std::mutex mutex;  // guards the two below: this thread's own, so that it orders no two
  Label task;
  std::deque<Label> queued;  // handed to a device, perhaps not yet done
};
inline thread_local Progress progress_here;

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

/// A thread that calls `expire` once, with an Error (communication), when a task has run for
/// `limit`. Only time in which this process runs counts: a job that was suspended goes on. One at a
/// time.
std::jthread watchdog(std::chrono::milliseconds limit, std::function<void(const Error&)> expire);
}  // namespace zero
