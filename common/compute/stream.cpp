// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace zero {
struct Event::State {
  std::mutex mutex;  // guards all
  std::condition_variable changed;
  bool reached = false;
  Mark mark;  // what is then still to be done by the device

  void reach(Mark when) {
    {
      const std::lock_guard lock(mutex);
      reached = true;
      mark = std::move(when);
    }
    changed.notify_all();
  }

  /// Blocks until the stream's thread has got there and returns the device's mark.
  Mark wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
    return mark;
  }
};

namespace {
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

  explicit Worker(const Stream& stream)
      : delay(delay_of(stream.name_)), thread([this, &kernels = stream.kernels()] {
          kernels.bind_thread();
          loop();
        }) {}

  ~Worker() {
    push(nullptr);
    thread.join();
  }

  void push(std::function<void()> task) {
    {
      std::unique_lock lock(mutex);
      room.wait(lock, [&] { return tasks.size() < most_queued; });
      tasks.push_back(std::move(task));
    }
    changed.notify_one();
  }

  /// Until the empty task, which is the last.
  void loop() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !tasks.empty(); });
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      room.notify_one();
      if (!task) return;
      task();
    }
  }

  const std::chrono::microseconds delay;  // looked up once: a lock at each task would order streams
  std::mutex mutex;  // guards tasks
  std::condition_variable changed;
  std::condition_variable room;
  std::deque<std::function<void()>> tasks;
  std::thread thread;  // last: it uses all of the above
};

Stream::Stream(const std::string& name, Device device, Mode mode)
    : name_(name),
      device_(device),
      observer_(observer_now()),
      progress_("stream " + name),
      kernels_(make_kernels(device)),
      worker_(mode == Mode::worker ? std::make_unique<Worker>(*this) : nullptr) {}

Stream::~Stream() = default;

void Stream::perform(const std::function<void()>& task) {
  const Working working(progress_);
  if (observer_) observer_(name_, current_phase, *kernels_, true);
  task();
  if (observer_) observer_(name_, current_phase, *kernels_, false);
}

void Stream::run(std::function<void()> task) {
  if (!worker_) return perform(task);
  worker_->push([this, delay = worker_->delay, phase = current_phase, step = current_step,
                 task = std::move(task)] {
    const PhaseScope scope(phase);
    current_step = step;
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    perform(task);
  });
}

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  const auto reach = [state = event.state_, this] { state->reach(kernels_->record()); };
  worker_ ? worker_->push(reach) : reach();
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  // This is no task of its own to the watchdog, nor is the host's waiting for a worker below: the
  // stream that is waited for counts, and no two can wait for each other.
  const auto wait = [state = event.state_, this] { kernels_->wait(state->wait()); };
  worker_ ? worker_->push(wait) : wait();
}

void Stream::synchronise() {
  const Mark mark = record().state_->wait();
  const Working waiting(Progress::of_host());
  wait_for(mark);
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
