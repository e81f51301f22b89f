// SPDX-License-Identifier: MIT
// Work on a stream runs in order; two streams run side by side unless an Event makes one wait.
#pragma once
#include <functional>
#include <future>
#include <optional>

#include "compute/here.hpp"
#include "compute/kernels.hpp"

namespace zero {
struct RecordedEvent {
  DeviceEventPtr event;  // the device passes it when the stream's work so far is done
  Work last;  // what the stream did last before the event, for traces
};
/// A point in a stream's work, passed or still to come. An Event() has been passed.
using Event = std::shared_future<RecordedEvent>;

/// A queue of tasks for one device. They run in order. On the CPU a task does its work, on a GPU it
/// queues work with kernels(). A task that throws on the stream's own thread ends the process. Call
/// synchronise() before you free memory that a queued task uses.
class Stream {
 public:
  enum class Mode {
    synchronous,  // a task is called, on the caller's thread, when it is put on the stream
    asynchronous,  // a thread of the stream's own calls the tasks
    urgent,  // asynchronous, and a GPU begins the tasks' work before that of other streams
  };

  /// name: is never freed (a literal). The device's observer is told of the new stream.
  Stream(const char* name, Device& device, Mode mode = Mode::synchronous);
  /// Waits until all that was put on the stream is done.
  ~Stream();
  Stream(const Stream&) = delete;

  /// Puts a task on the stream, with the caller's phase and step. Waits while 4096 tasks wait.
  void run(const Work& work, std::function<void()> task) { put(work, std::move(task)); }
  void run(std::function<void()> task) { put(Work(), std::move(task)); }
  /// Returns the point at which everything put on the stream so far is done.
  Event record();
  /// Makes everything put on the stream from now on start after the event's point.
  void wait(const Event& event);
  /// Blocks until the stream is idle.
  void synchronise();

  Device& device() const { return device_; }
  Kernels& kernels() const { return *kernels_; }

  /// Calls task(). Within a stream's task, that stream's observer hears `work` begin and end.
  static void part(const Work& work, const auto& task) {
    struct Part {
      explicit Part(const Work& work) : work(work) { tell(true); }
      ~Part() { tell(false); }
      void tell(bool begins) { here.stream ? here.stream->tell(work, begins) : void(); }
      const Work& work;
    } const part(work);
    task();
  }

 private:
  struct Worker;
  struct Task {
    std::optional<Work> work;  // empty: the task only records or waits for an Event
    int step = 0;
    Phase phase = Phase::setup;
    int order = 0;  // see Here::order
    std::function<void()> call;
  };

  void put(std::optional<Work> work, std::function<void()> call);
  void perform(const Task& task);
  void tell(const Work& work, bool begins) {
    if (observer_) observer_->on_work(work, kernels_.get(), begins);
  }

  const char* const name_;
  Device& device_;
  StreamObserver* const observer_;  // null: nobody observes
  const std::unique_ptr<Kernels> kernels_;
  Work last_;  // the last task's; record() copies it for traces. The tasks' thread sets it
  std::unique_ptr<Worker> worker_;  // null when synchronous. Last: its thread uses all others
};
}  // namespace zero
