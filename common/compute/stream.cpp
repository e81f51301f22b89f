// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <condition_variable>
#include <utility>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
namespace {
/// The calling thread is there until the end of the scope.
struct Within {
  Within(int step, Phase phase, Stream* stream)
      : step(std::exchange(here.step, step)),
        phase(std::exchange(here.phase, phase)),
        stream(std::exchange(here.stream, stream)) {}
  ~Within() { here.step = step, here.phase = phase, here.stream = stream; }
  Within(const Within&) = delete;

  const int step;
  const Phase phase;
  Stream* const stream;
};
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& device, bool urgent) {
  if (device.type == DeviceType::cuda) return cuda::make_kernels(device, urgent);
  return std::make_unique<CpuKernels>(device.threads);
}

void wait_for(const Mark& mark) {
  using Clock = std::chrono::steady_clock;
  if (!mark || mark->passed()) return;
  ++mark->device.waits;
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

Stream::Stream(const char* name, Device& device, Mode mode)
    : name_(name),
      device_(device),
      watcher_(device.observer ? device.observer->watcher(name) : nullptr),
      kernels_(make_kernels(device, mode == Mode::urgent)),
      worker_(mode == Mode::inline_ || device.in_turn ? nullptr
                                                      : std::make_unique<Worker>(*kernels_)) {}

Stream::~Stream() = default;

void Stream::enqueue(std::function<void()> task) {
  const auto called = [this, step = here.step, phase = here.phase, task = std::move(task)] {
    const Within within(step, phase, this);
    task();
  };
  worker_ ? worker_->push(called) : called();
}

void Stream::run(const Work& work, std::function<void()> task) {
  enqueue([this, work, task = std::move(task)] {
    const Working working(work, name_);
    part(work, task);
    last_ = work;
  });
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
  enqueue([event, this] {
    Work work{.sort = Work::Sort::wait};
    tell(work, true);
    const Point point = event.get();
    kernels_->wait(point.mark);
    work.what = point.last.what, work.layer = point.last.layer;  // known at its end
    tell(work, false);
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
}  // namespace zero
