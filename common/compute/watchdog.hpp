// SPDX-License-Identifier: MIT
// One thread that sees when nothing moves any more: a stream's task that does not end, because
// another rank is stuck or stopped, or the device is. It ends the job with a sentence instead of
// letting everybody wait for ever.
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "compute/kernels.hpp"
#include "compute/phase.hpp"
#include "compute/work.hpp"

namespace zero {
/// What one stream, or the host, is doing: its tasks begin and end, and say of themselves what they
/// wait for. In the watchdog's sight as long as it lives. The members are for the functions below.
struct Progress {
  /// who: as the watchdog's sentence names it, as "stream compute".
  explicit Progress(std::string who);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Of the thread that waits outside of all streams: at the start, for reports.
  static Progress& of_host();
  /// Of the task that the calling thread is in; outside of tasks, the host's.
  static Progress& of_caller();

  struct Task {
    Work work;
    int step = 0;
    Phase phase = Phase::setup;
    std::vector<int> missing;  // ranks whose part has not come
  };

  const std::string who;
  std::atomic<std::uint64_t> count = 0;  // of beginnings and ends: odd while a task runs
  std::mutex mutex;  // guards the two below: this stream's own, so that it orders no two streams
  Task task;
  std::deque<std::pair<Task, Mark>> queued;  // handed to a device, perhaps not yet done
  std::uint64_t seen = 0;  // count, when the watchdog last looked; these two are its own
  std::chrono::milliseconds stands{};  // so long it has seen the present task run; 0 between tasks
};

/// The calling thread is within a task, for as long as this lives.
class Working {
 public:
  explicit Working(Progress& progress, const Work& work = {});
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  Progress& progress_;
  Progress* const outer_;
};

/// The calling task waits for messages from those ranks.
void task_waits_for(std::vector<int> ranks);
/// The calling task has not ended, but does what it is to do: it does not stand still.
void task_goes_on();
/// The calling task has handed itself to its device, which is done with it when the mark is passed.
void task_queued(Mark mark);

class Watchdog {
 public:
  /// Calls `expire` once, on a thread of its own, with a sentence, when a task has run for `limit`.
  /// Only time in which this process runs counts: a job that was suspended goes on.
  Watchdog(std::chrono::milliseconds limit, std::function<void(const std::string&)> expire);

 private:
  std::jthread thread_;
};
}  // namespace zero
