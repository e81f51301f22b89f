// SPDX-License-Identifier: MIT
// One thread that sees when nothing moves any more: a stream's task that does not end, because
// another rank is stuck or stopped, or the device is. It ends the job with a sentence instead of
// letting everybody wait for ever.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "compute/kernels.hpp"
#include "compute/phase.hpp"

namespace zero {
/// What one stream, or the host, is doing: its tasks begin and end, and say of themselves what they
/// wait for. In the watchdog's sight from construction to destruction.
class Progress {
 public:
  /// who: as the watchdog's sentence names it, as "stream compute".
  explicit Progress(std::string who);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Of the thread that waits outside of all streams: at the start, for reports.
  static Progress& of_host();
  /// Of the task that the calling thread is in; outside of tasks, the host's.
  static Progress& of_caller();

 private:
  friend class Working;
  friend class Watchdog;
  friend void task_is(const std::string& what);
  friend void task_waits_for(std::vector<int> ranks);
  friend void task_queued(Mark mark);

  /// What a sentence says of a task.
  struct Task {
    std::string what;
    int step = 0;
    Phase phase = Phase::setup;
    std::vector<int> missing;  // ranks whose part has not come
  };

  struct Stuck {
    bool by_others;  // the task waits for other ranks, or for what its device does with them
    std::chrono::milliseconds stands;
    Task task;
    std::string who;
  };

  /// How long the present task has been seen to run, when it was last seen that much ago; 0 between
  /// tasks.
  std::chrono::milliseconds seen_again(std::chrono::milliseconds later);
  /// The oldest task that the device has been given and not done; else the present one, when it has
  /// run for `limit`.
  std::optional<Stuck> stuck(std::chrono::milliseconds limit);

  const std::string who_;
  std::atomic<std::uint64_t> count_ = 0;  // of beginnings and ends: odd while a task runs
  std::mutex mutex_;  // guards the two below: this stream's own, so that it orders no two streams
  Task task_;
  std::deque<std::pair<Task, Mark>> queued_;  // handed to a device, perhaps not yet done
  std::uint64_t seen_ = 0;  // count_; these two are the watchdog's own
  std::chrono::milliseconds stands_{};
};

/// The calling thread is within a task, for as long as this lives.
class Working {
 public:
  explicit Working(Progress& progress);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  Progress& progress_;
  Progress* const outer_;
};

/// The calling task is that one, as "all_gather of layer 3".
void task_is(const std::string& what);
/// The calling task waits for messages from those ranks.
void task_waits_for(std::vector<int> ranks);
/// The calling task has handed itself to its device, which is done with it when the mark is passed.
void task_queued(Mark mark);

class Watchdog {
 public:
  /// Calls `expire` once, on a thread of its own, with a sentence, when a task has run for `limit`.
  /// Only time in which this process runs counts: a job that was suspended goes on.
  Watchdog(std::chrono::milliseconds limit, std::function<void(const std::string&)> expire);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();
  /// Of all that stand still the one that says most: one that waits for others, then the longest.
  std::optional<Progress::Stuck> find_stuck() const;
  std::string sentence(const Progress::Stuck& stuck) const;

  const std::chrono::milliseconds limit_;
  const std::function<void(const std::string&)> expire_;
  std::mutex mutex_;  // guards closing_
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};
}  // namespace zero
