// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "memory/error.hpp"

namespace zero {

namespace {

std::runtime_error stopped() {
  return std::runtime_error("the stream was stopped");
}

}  // namespace

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  MomentPointer moment;  // what is then still to be done by the device
  std::exception_ptr failure;

  void settle(MomentPointer when, std::exception_ptr why) {
    {
      const std::lock_guard lock(mutex);
      reached = true;
      moment = std::move(when);
      failure = std::move(why);
    }
    changed.notify_all();
  }

  /// Blocks until the stream's thread has got there and returns the device's moment; rethrows when
  /// what led up to it failed. A stream that is being stopped gives up waiting for others: nobody
  /// tells it, so it looks now and then.
  MomentPointer wait() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(10), [&] { return reached; })) {
      if (Stream::cancelled()) throw stopped();
    }
    if (failure) std::rethrow_exception(failure);
    return moment;
  }
};

namespace {

thread_local const std::atomic<bool>* cancel_flag = nullptr;

std::mutex hooks_mutex;  // guards both
std::map<std::string, std::chrono::microseconds> delays;
Stream::Observer present_observer;

std::chrono::microseconds delay_of(const std::string& name) {
  const std::lock_guard lock(hooks_mutex);
  const auto found = delays.find(name);
  return found == delays.end() ? std::chrono::microseconds(0) : found->second;
}

Stream::Observer observer_now() {
  const std::lock_guard lock(hooks_mutex);
  return present_observer;
}

}  // namespace

struct Stream::Worker {
  /// So far may the host run ahead: the queue is memory that no ledger sees.
  static constexpr std::size_t most_queued = 4096;

  /// `dropped` is called instead of `run` when the stream is poisoned.
  struct Task {
    std::function<void()> run;
    std::function<void(std::exception_ptr)> dropped;
  };

  Worker(const std::string& name, Kernels& kernels)
      : delay(delay_of(name)),
        thread([this, &kernels] {
          try {
            kernels.bind_thread();
          } catch (...) {
            poison = std::current_exception();
          }
          loop();
        }) {}

  void stop() {
    if (!thread.joinable()) return;
    cancel = true;
    push({[] {}, nullptr}, true);
    thread.join();
  }

  void push(Task task, bool last = false) {
    std::unique_lock lock(mutex);
    if (closing) {
      lock.unlock();
      if (task.dropped) task.dropped(std::make_exception_ptr(stopped()));
      return;
    }
    if (!last) room.wait(lock, [&] { return tasks.size() < most_queued; });
    tasks.push_back(std::move(task));
    closing = last;
    lock.unlock();
    changed.notify_one();
  }

  void loop() {
    cancel_flag = &cancel;
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !tasks.empty(); });
      const Task task = std::move(tasks.front());
      tasks.pop_front();
      const bool last = closing && tasks.empty();
      lock.unlock();
      room.notify_one();
      execute(task);
      if (last) return;
    }
  }

  void execute(const Task& task) {
    if (cancel && !poison) poison = std::make_exception_ptr(stopped());
    if (!poison) {
      try {
        task.run();
        return;
      } catch (...) {
        poison = std::current_exception();
      }
    }
    if (task.dropped) task.dropped(poison);
  }

  const std::chrono::microseconds delay;  // looked up once: a lock at each task would order streams
  std::atomic<bool> cancel = false;
  std::mutex mutex;  // guards tasks and closing
  std::condition_variable changed;
  std::condition_variable room;
  std::deque<Task> tasks;
  bool closing = false;
  std::exception_ptr poison;  // the worker thread's own
  std::thread thread;  // last: it uses all of the above
};

Stream::Stream(const std::string& name, Mode mode)
    : name_(name),
      observer_(observer_now()),
      kernels_(make_kernels(current_device())),
      worker_(mode == Mode::worker ? std::make_unique<Worker>(name, *kernels_) : nullptr) {}

Stream::~Stream() {
  stop();
}

void Stream::stop() {
  if (worker_) worker_->stop();
  kernels_->drain();
}

void Stream::run(std::function<void()> task) {
  if (observer_) task = observed(std::move(task));
  if (!worker_) return task();
  auto in_phase = [this, phase = current_phase, task = std::move(task)] {
    const PhaseScope scope(phase);
    if (worker_->delay.count() > 0) std::this_thread::sleep_for(worker_->delay);
    task();
  };
  worker_->push({std::move(in_phase), nullptr});
}

std::function<void()> Stream::observed(std::function<void()> task) const {
  return [this, task = std::move(task)] {
    observer_(name_, current_phase, *kernels_, true);
    task();
    observer_(name_, current_phase, *kernels_, false);
  };
}

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  const auto reach = [state = event.state_, this] { state->settle(kernels_->record(), nullptr); };
  const auto fail = [state = event.state_](std::exception_ptr why) { state->settle(nullptr, why); };
  if (worker_) {
    worker_->push({reach, fail});
  } else {
    reach();
  }
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  const auto wait = [state = event.state_, this] { kernels_->wait(state->wait()); };
  if (worker_) {
    worker_->push({wait, nullptr});
  } else {
    wait();
  }
}

void Stream::synchronise() {
  wait_for(record().state_->wait());
}

bool Stream::cancelled() {
  return cancel_flag && *cancel_flag;
}

void Stream::delay_for_tests(const std::string& name, std::chrono::microseconds delay) {
  const std::lock_guard lock(hooks_mutex);
  delays[name] = delay;
}

void Stream::observe(Observer observer) {
  const std::lock_guard lock(hooks_mutex);
  present_observer = std::move(observer);
}

}  // namespace zero
