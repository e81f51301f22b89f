// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <condition_variable>
#include <utility>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
namespace {
std::mutex observers_mutex;  // guards the next
std::function<Stream::Observer(const std::string&)> observers;

Stream::Observer observer_of(const std::string& stream) {
  const std::lock_guard lock(observers_mutex);
  return observers ? observers(stream) : nullptr;
}

std::atomic<std::int64_t> waits = 0;

thread_local Stream* present = nullptr;  // whose task the calling thread is in

struct Within {
  explicit Within(Stream* stream) : outer(std::exchange(present, stream)) {}
  ~Within() { present = outer; }
  Within(const Within&) = delete;

  Stream* const outer;
};
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device device, bool urgent) {
  if (device == Device::cuda) return cuda::make_kernels(urgent);
  return std::make_unique<CpuKernels>(device == Device::host ? host_threads : 1);
}

void wait_for(const Mark& mark) {
  using Clock = std::chrono::steady_clock;
  if (!mark || mark->passed()) return;
  ++waits;
  // Most steps are shorter than that; whoever waits longer leaves the core to others.
  constexpr auto yielding = std::chrono::milliseconds(20);
  for (const auto start = Clock::now(); !mark->passed();) {
    if (Clock::now() - start < yielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

std::int64_t waits_so_far() { return waits; }

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

Stream::Stream(const char* name, Device device, Mode mode)
    : name_(name),
      device_(device),
      observer_(observer_of(name)),
      kernels_(make_kernels(device, mode == Mode::urgent)),
      worker_(mode == Mode::inline_ || one_after_the_other ? nullptr
                                                           : std::make_unique<Worker>(*kernels_)) {}

Stream::~Stream() = default;

void Stream::enqueue(std::function<void()> task) {
  worker_ ? worker_->push(std::move(task)) : task();
}

void Stream::show(const Work& work, const std::function<void()>& task) {
  if (observer_) observer_(work, *kernels_, true);
  task();
  if (observer_) observer_(work, *kernels_, false);
}

void Stream::run(const Work& work, std::function<void()> task) {
  enqueue([this, work, phase = current_phase, step = current_step, task = std::move(task)] {
    const PhaseScope scope(phase);
    current_step = step;
    const Working working(work, name_);
    const Within within(this);
    show(work, task);
    last_ = work;
  });
}

void Stream::part(const Work& work, const std::function<void()>& task) {
  present ? present->show(work, task) : task();
}

Event Stream::record() {
  const auto point = std::make_shared<std::promise<Point>>();
  enqueue([point, this] { point->set_value({kernels_->record(), last_}); });
  return point->get_future();
}

void Stream::wait(const Event& event) {
  if (!event.valid()) return;
  // This is no task of its own to the watchdog, nor is the host's waiting for a worker below: the
  // stream that is waited for counts, and no two can wait for each other.
  enqueue([event, this, phase = current_phase, step = current_step] {
    const PhaseScope scope(phase);
    current_step = step;
    Work work{.sort = Work::Sort::wait};
    // Whom it waited for is known at its end.
    if (observer_) observer_(work, *kernels_, true);
    const Point point = event.get();
    kernels_->wait(point.mark);
    work.what = point.last.what, work.layer = point.last.layer;
    if (observer_) observer_(work, *kernels_, false);
  });
}

void Stream::synchronise() {
  const Work wait{name_, Work::Sort::wait};
  tell_host(wait, true);
  const Mark mark = record().get().mark;
  {
    const Working waiting;
    wait_for(mark);
  }
  tell_host(wait, false);
}

void Stream::observe(std::function<Observer(const std::string& stream)> made) {
  const std::lock_guard lock(observers_mutex);
  observers = std::move(made);
}
}  // namespace zero
