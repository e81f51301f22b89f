// SPDX-License-Identifier: MIT
// Where in a run the calling thread is, and who is told of it.
#pragma once
#include "compute/phase.hpp"
#include "compute/work.hpp"

namespace zero {
class Kernels;
class Stream;
class TaskScope;

/// Hears what one stream does, or what the trainer's thread does.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  /// Called when work or a wait begins or ends; `here` has its phase and step. on: the kernels of
  /// the stream; null if `work` is a phase of the trainer's thread, or its wait for a stream.
  virtual void on_work(const Work& work, Kernels* on, bool begins) = 0;
  /// Called when the trainer's thread puts work on the stream. Returns a number for it, for traces.
  virtual int on_queued() { return 0; }
};

/// The calling thread's position. A Stream copies step and phase to the thread of its tasks.
struct Here {
  int step = 0;  // of the whole run, from 1; 0: set-up
  Phase phase = Phase::setup;  // the phase that needs the work: traffic is counted under it
  Phase during = Phase::setup;  // the host's own phase; it may queue work that a later phase needs
  int order = 0;  // of a stream's task: what on_queued() returned for it
  StreamObserver* observer = nullptr;  // hears of this thread's phases and waits; null: nobody does
  Stream* stream = nullptr;  // the stream whose task this thread performs; null: none
  const TaskScope* task = nullptr;  // the outermost task that this thread performs; null: none
};
inline thread_local Here here;

/// Tells the observer that a phase of the calling thread, or its wait for a stream, begins or ends.
inline void tell_host(const Work& work, bool begins) {
  if (here.observer) here.observer->on_work(work, nullptr, begins);
}
}  // namespace zero
