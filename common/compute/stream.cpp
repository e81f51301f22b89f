// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <condition_variable>
#include <utility>

namespace zero {
namespace {
std::mutex observer_mutex;  // guards the next
Stream::Observer present_observer;

Stream::Observer observer_now() {
  const std::lock_guard lock(observer_mutex);
  return present_observer;
}
}  // namespace

/// A thread that calls tasks in order, until an empty one.
struct Stream::Worker {
  /// So far may the host run ahead: the queue is memory that no ledger sees.
  static constexpr std::size_t most_queued = 4096;

  explicit Worker(Kernels& kernels)
      : thread([this, &kernels] {
          kernels.bind_thread();
          while (const auto task = next()) task();
        }) {}

  ~Worker() {
    push(nullptr);
    thread.join();
  }

  void push(std::function<void()> task) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tasks.size() < most_queued; });
    tasks.push_back(std::move(task));
    lock.unlock();  // or the worker would wake to wait again, for the lock
    changed.notify_all();
  }

  std::function<void()> next() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !tasks.empty(); });
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    changed.notify_all();
    return task;
  }

  std::mutex mutex;  // guards tasks
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::thread thread;  // last: it uses all of the above
};

Stream::Stream(const std::string& name, Device device, Mode mode)
    : name_(name),
      device_(device),
      observer_(observer_now()),
      progress_("stream " + name),
      kernels_(make_kernels(device, mode == Mode::urgent)),
      worker_(mode == Mode::inline_ ? nullptr : std::make_unique<Worker>(*kernels_)) {}

Stream::~Stream() = default;

void Stream::enqueue(std::function<void()> task) {
  worker_ ? worker_->push(std::move(task)) : task();
}

void Stream::run(std::function<void()> task) {
  enqueue([this, phase = current_phase, step = current_step, task = std::move(task)] {
    const PhaseScope scope(phase);
    current_step = step;
    const Working working(progress_);
    if (observer_) observer_(name_, phase, *kernels_, true);
    task();
    if (observer_) observer_(name_, phase, *kernels_, false);
  });
}

Event Stream::record() {
  const auto mark = std::make_shared<std::promise<Mark>>();
  enqueue([mark, this] { mark->set_value(kernels_->record()); });
  return mark->get_future();
}

void Stream::wait(const Event& event) {
  if (!event.valid()) return;
  // This is no task of its own to the watchdog, nor is the host's waiting for a worker below: the
  // stream that is waited for counts, and no two can wait for each other.
  enqueue([event, this] { kernels_->wait(event.get()); });
}

void Stream::synchronise() {
  const Mark mark = record().get();
  const Working waiting(Progress::of_host());
  wait_for(mark);
}

void Stream::observe(Observer observer) {
  const std::lock_guard lock(observer_mutex);
  present_observer = std::move(observer);
}
}  // namespace zero
