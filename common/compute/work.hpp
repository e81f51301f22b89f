// SPDX-License-Identifier: MIT
// What a piece of work is, where in a run a thread is, and the watchdog over both. Traffic is
// counted under the phase that needs it; memory under the phase in which the host books it, the one
// before if gathered ahead.
#pragma once
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/call_site.hpp"
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
  enum class Sort { compute, copy, transfer, message, wait };  // transfer: over a bus

  const char* what = "a task";  // stays as long as the program; of a wait, what is waited for
  Sort sort = Sort::compute;
  int layer = -1;  // of the model; -1: no layer's
  std::int64_t elements = 0;  // that it makes or changes; of messages, that this rank sends
  std::int64_t bytes = 0;  // of those
  std::vector<View> reads{}, writes{};  // of what a trainer holds and what it has borrowed

  /// Where its result lies, or what it reads; of activations alone where the device computes.
  Place place() const {
    const std::vector<View>& of = writes.empty() ? reads : writes;
    return of.empty() ? Place::device : of[0].place();
  }
  /// Of a transfer: whose bus it takes, the device's or the disk's.
  Place bus() const {
    const Place from = reads.empty() ? Place::device : reads[0].place();
    return from == Place::host ? place() : from;
  }
};

/// Of the layer, and of as many elements, as what it writes first, or reads.
inline Work work_on(const char* what, std::vector<View> reads, std::vector<View> writes,
                    Work::Sort sort = Work::Sort::compute) {
  const View of = writes.empty() ? reads.at(0) : writes[0];
  return {what, sort, of.layer, of.size, of.bytes(), std::move(reads), std::move(writes)};
}

class Kernels;
/// Looks on at one stream, or at the thread that runs the trainer.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// Work or a wait begins or ends on the calling thread; `here` has its phase and step. On the
  /// trainer's thread it is a phase or a wait for a stream, and `on` is null.
  virtual void see(const Work& work, Kernels* on, bool begins) = 0;
  /// The trainer's thread puts a task on the stream. Returns what `here.order` is while it runs.
  virtual int queued() { return 0; }
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

class Stream;
class Working;

/// Where the calling thread is in a run. A Stream hands step and phase on to its tasks.
struct Here {
  int step = 0;  // of the whole run, from 1; 0: set-up
  Phase phase = Phase::setup;  // that needs what is done
  Phase during = Phase::setup;  // in which the host is, which may be ahead of it
  int order = 0;  // of a stream's task: its number in the order of the program
  Watcher* watcher = nullptr;  // is told of phases and waits of this thread; null: nobody is
  Stream* stream = nullptr;  // whose task it is in
  const Working* working = nullptr;  // its task, for the watchdog
};
inline thread_local Here here;

/// A phase of the calling thread, or its waiting for a stream, begins or ends.
inline void tell_host(const Work& work, bool begins) {
  if (here.watcher) here.watcher->see(work, nullptr, begins);
}

// ---- The watchdog: ends the job, with a sentence, when nothing ends any more ----

/// The calling thread is within a task, for as long as this lives; within another it is part of it.
class Working {
 public:
  explicit Working(const Work& work = {}, const char* stream = nullptr);
  ~Working();
  Working(const Working&) = delete;

  const Work work;
  const char* const stream;  // whose it is; null: the host's
};

/// The calling thread's task waits for those ranks: at a standstill the watchdog says so. To be
/// called again and again.
void waits_for(const std::set<int>& ranks);

/// Calls `expire` once, with an Error (communication), when tasks have begun and for `limit` none
/// has ended; time in which the process is suspended does not count. It asks no driver, which may
/// not answer while a launch waits for room in a GPU's queue. One at a time.
std::jthread watchdog(std::chrono::milliseconds limit, std::function<void(const Error&)> expire);
}  // namespace zero
