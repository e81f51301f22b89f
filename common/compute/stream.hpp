// SPDX-License-Identifier: MIT
// Work in order: what is put on a stream runs in that order, and two streams run side by side
// unless an Event makes one wait for the other.
#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "compute/kernels.hpp"
#include "compute/phase.hpp"

namespace zero {

/// A point in a stream's work: passed, failed or still to come. Copies mean the same moment.
class Event {
 public:
  /// A moment that has passed.
  Event() = default;

 private:
  friend class Stream;
  struct State;
  std::shared_ptr<State> state_;
};

/// An in-order queue of tasks, for the device that was current when it was made. On the CPU a task
/// does its work; on a GPU it queues work with kernels(), which the GPU does in that order: there
/// the moments of events are the GPU's too.
///
/// A failing task poisons its stream: the tasks after it are dropped, events recorded after it
/// fail, and so does every stream and every synchronise() that waits for them, with the same
/// exception. Without that, an error on one stream would be a hang on another.
///
/// Memory that a task uses must outlive the task: synchronise() or stop() before it goes.
class Stream {
 public:
  enum class Mode {
    inline_,  // a task is called, on the caller's thread, when it is put on the stream
    worker,  // a thread of the stream's own calls the tasks
  };

  explicit Stream(const std::string& name, Mode mode = Mode::inline_);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Puts a task on the stream, with the caller's phase. An inline stream rethrows at once. With
  /// 4096 tasks waiting, a worker stream lets the caller wait for room.
  void run(std::function<void()> task);
  /// The moment at which everything put on the stream so far is done.
  Event record();
  /// What is put on the stream from now on starts after that moment.
  void wait(const Event& event);
  /// The device's work, for tasks of this stream.
  Kernels& kernels() const { return *kernels_; }
  /// Blocks until the stream is idle. Throws what a task threw.
  void synchronise();
  /// Drops what has not started, tells what is running (see `cancelled`), and waits for it. The
  /// end of a worker stream; the destructor calls it.
  void stop();

  /// True within a task whose stream is being stopped: a task that waits for others must look.
  static bool cancelled();
  /// For tests: in worker streams of that name constructed from now on every task starts that much
  /// later, which makes the schedule in which a missing wait shows. Zero ends it.
  static void delay_for_tests(const std::string& name, std::chrono::microseconds delay);
  using Observer =
      std::function<void(const std::string& stream, Phase phase, Kernels& on, bool begins)>;
  /// For tests and traces: in streams constructed from now on that is called right before each task
  /// and right after it, unless it threw, on the thread that calls the task. Empty ends it.
  static void observe(Observer observer);

 private:
  struct Worker;
  std::function<void()> observed(std::function<void()> task) const;

  std::string name_;
  Observer observer_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Worker> worker_;  // none when inline
};

}  // namespace zero
