// SPDX-License-Identifier: MIT
// What a piece of work is, where in a run a thread is, and the watchdog over both. Traffic is
// counted under the phase that needs it; memory under the phase in which the host books it, the one
// before if gathered ahead.
#pragma once
#include <chrono>
#include <climits>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "memory/tensor.hpp"

namespace zero {
/// A place in the order of a device's queue.
class DeviceMark {
 public:
  explicit DeviceMark(Device& device) : device(device) {}
  virtual ~DeviceMark() = default;
  Device& device;  // may be gone before the mark: passed() leaves it alone
  /// Throws Error (resources) when the device has failed.
  virtual bool passed() const = 0;
  /// When it was, by the host's clock; of a mark that record_time() made and that is passed.
  virtual std::chrono::steady_clock::time_point time() const = 0;
};
/// Null: a place that has been passed.
using Mark = std::shared_ptr<const DeviceMark>;

/// A piece of a stream's work, as the watchdog and traces see it.
struct Work {
  enum class Sort { compute, copy, transfer, message, wait };  // transfer: over the bus

  const char* what = "a task";  // stays as long as the program; of a wait, what is waited for
  Sort sort = Sort::compute;
  int layer = -1;  // of the model; -1: no layer's
  std::int64_t elements = 0;  // that it makes or changes; of messages, that this rank sends
  std::int64_t bytes = 0;  // of those
  View made{};  // what it leaves behind; empty: nothing to be shown
};

inline Work work_on(const char* what, View view, Work::Sort sort = Work::Sort::compute) {
  return {what, sort, view.layer, view.size, view.bytes(), view};
}

class Kernels;
/// Looks on at one stream, or at the thread that runs the trainer.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// Work or a wait begins or ends on the calling thread; `here` has its phase and step. On the
  /// trainer's thread it is a phase or a wait for a stream, and `on` is null.
  virtual void see(const Work& work, Kernels* on, bool begins) = 0;
};

/// "all_gather of layer 3".
inline std::string words(const Work& work) {
  return work.what + (work.layer < 0 ? "" : " of layer " + std::to_string(work.layer));
}

enum class Phase { setup, load, forward, backward, update };
template <>
inline constexpr std::array names_of<Phase>{"setup", "load", "forward", "backward", "update"};
/// Those in which ranks send.
inline constexpr Phase step_phases[] = {Phase::forward, Phase::backward, Phase::update};

/// What the watchdog sees of a thread, as long as that lives.
struct Watched {
  Watched();
  ~Watched();

  struct Task {
    Work work{};
    const char* stream = nullptr;  // whose it is; null: the host's
    int step = 0;
    Phase phase = Phase::setup;
    std::chrono::steady_clock::time_point since{};
    std::vector<int> missing{};  // ranks whose part has not come
    Mark done{};  // the device's, when it was handed to one
  };
  static constexpr int idle = INT_MAX;

  std::atomic<int> began = idle;  // the present task, by the watchdog's ticks
  std::mutex mutex;  // guards the two below: this thread's own, so that it orders no two
  Task task;
  std::deque<Task> queued;  // handed to a device, perhaps not yet done
};

class Stream;

/// Where the calling thread is in a run. A Stream hands step and phase on to its tasks.
struct Here {
  int step = 0;  // counts from 1; 0: before the first
  Phase phase = Phase::setup;
  Watcher* watcher = nullptr;  // is told of phases and waits of this thread; null: nobody is
  Stream* stream = nullptr;  // whose task it is in
  Watched watched;
};
inline thread_local Here here;

/// A phase of the calling thread, or its waiting for a stream, begins or ends.
inline void tell_host(const Work& work, bool begins) {
  if (here.watcher) here.watcher->see(work, nullptr, begins);
}

/// Sets the phase until the end of the scope.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase)
      : before_(here.phase),
        // Within a phase only `load` is one by itself; another says whose messages are counted.
        told_(phase != before_ && (before_ == Phase::setup || phase == Phase::load)) {
    here.phase = phase;
    if (told_) tell_host({name_of(phase)}, true);
  }
  ~PhaseScope() {
    if (told_) tell_host({name_of(here.phase)}, false);
    here.phase = before_;
  }
  PhaseScope(const PhaseScope&) = delete;

 private:
  const Phase before_;
  const bool told_;
};

// ---- The watchdog: ends the job, with a sentence, when a rank or a device hangs ----

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
