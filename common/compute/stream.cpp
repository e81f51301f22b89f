// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
namespace {
std::atomic<std::int64_t> waits = 0;
std::mutex observer_mutex;  // guards the next
Stream::Observer present_observer;

Stream::Observer observer_now() {
  const std::lock_guard lock(observer_mutex);
  return present_observer;
}
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device device) {
  if (device == Device::cuda) return cuda::make_kernels();
  return std::make_unique<CpuKernels>();
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
      kernels_(make_kernels(device)),
      worker_(mode == Mode::worker ? std::make_unique<Worker>(*kernels_) : nullptr) {}

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
  Event event;
  event.reached_ = mark->get_future();
  enqueue([mark, this] { mark->set_value(kernels_->record()); });
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.reached_.valid()) return;
  // This is no task of its own to the watchdog, nor is the host's waiting for a worker below: the
  // stream that is waited for counts, and no two can wait for each other.
  enqueue([reached = event.reached_, this] { kernels_->wait(reached.get()); });
}

void Stream::synchronise() {
  const Mark mark = record().reached_.get();
  const Working waiting(Progress::of_host());
  wait_for(mark);
}

void Stream::observe(Observer observer) {
  const std::lock_guard lock(observer_mutex);
  present_observer = std::move(observer);
}
}  // namespace zero
