// SPDX-License-Identifier: MIT
#include "compute/stream.hpp"

#include <condition_variable>
#include <deque>
#include <utility>

#include "compute/bus.hpp"
#include "compute/watchdog.hpp"

namespace zero {
namespace {
/// While a Within lives, the calling thread performs a task of `stream`.
struct Within {
  explicit Within(Stream* stream) : before(std::exchange(here.stream, stream)) {}
  ~Within() { here.stream = before; }
  Within(const Within&) = delete;

  Stream* const before;
};
}  // namespace

void wait_for(const DeviceEventPtr& event) {
  using Clock = std::chrono::steady_clock;
  if (!event || event->passed()) return;
  ++event->device.waits;
  // The wait yields so long, because most steps are shorter; then it sleeps: others need the core.
  constexpr auto yielding = std::chrono::milliseconds(20);
  for (const auto start = Clock::now(); !event->passed();) {
    if (event->device.check_peers) event->device.check_peers();
    if (Clock::now() - start < yielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void sleep_precisely_until(std::chrono::steady_clock::time_point end) {
  using std::chrono::steady_clock;
  const auto wake = end - std::chrono::microseconds(100);
  constexpr auto nap = std::chrono::milliseconds(100);
  while (steady_clock::now() < wake) {
    const TaskScope asleep;  // each nap is a task of its own, so that the watchdog sees tasks end
    std::this_thread::sleep_until(std::min(wake, steady_clock::now() + nap));
  }
  while (steady_clock::now() < end) continue;
}

/// A thread that performs tasks in order, until an empty task, which the destructor pushes.
struct Stream::Worker {
  /// At most so many tasks wait, because no ledger counts their memory.
  static constexpr std::size_t most_queued = 4096;

  explicit Worker(Stream& stream)
      : thread([this, &stream] {
          stream.device_.bind_thread();
          for (Task task = next(); task.call; task = next()) stream.perform(task);
        }) {}

  ~Worker() {
    push({});
    thread.join();
  }

  void push(Task task) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tasks.size() < most_queued; });
    tasks.push_back(std::move(task));
    lock.unlock();  // or the worker would wake only to wait for the lock
    changed.notify_all();
  }

  Task next() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !tasks.empty(); });
    Task task = std::move(tasks.front());
    tasks.pop_front();
    changed.notify_all();
    return task;
  }

  std::mutex mutex;  // guards tasks
  std::condition_variable changed;
  std::deque<Task> tasks;
  std::thread thread;  // last: it uses all of the above
};

Stream::Stream(const char* name, Device& device, Mode mode)
    : name_(name),
      device_(device),
      observer_(device.observer() ? device.observer()->stream_observer(name) : nullptr),
      kernels_(make_kernels(device, mode == Mode::urgent)),
      worker_(mode == Mode::synchronous ? nullptr : std::make_unique<Worker>(*this)) {}

Stream::~Stream() = default;

void Stream::put(std::optional<Work> work, std::function<void()> call) {
  const int order = observer_ && work ? observer_->on_queued() : 0;
  Task task{std::move(work), here.step, here.phase, order, std::move(call)};
  worker_ ? worker_->push(std::move(task)) : perform(task);
}

void Stream::perform(const Task& task) {
  here.step = task.step, here.phase = task.phase;  // no change on the caller's own thread
  here.order = task.order;
  const Within within(this);
  const TaskScope scope(task.work.value_or(Work{.type = Work::Type::wait}), name_);
  if (!task.work) return task.call();
  part(*task.work, task.call);
  last_ = {task.work->what, Work::Type::wait, task.work->layer};
}

Event Stream::record() {
  const auto event = std::make_shared<std::promise<RecordedEvent>>();
  put({}, [event, this] { event->set_value({kernels_->record(), last_}); });
  return event->get_future();
}

void Stream::wait(const Event& event) {
  if (!event.valid()) return;
  put({}, [event, this] {
    Work work{.type = Work::Type::wait};
    tell(work, true);
    const RecordedEvent& recorded = event.get();
    kernels_->wait(recorded.event);
    work.what = recorded.last.what, work.layer = recorded.last.layer;  // known when the wait ends
    tell(work, false);
  });
}

void Stream::synchronise() {
  const Work wait{name_, Work::Type::wait};
  const TaskScope waiting(wait);
  tell_host(wait, true);
  wait_for(record().get().event);
  tell_host(wait, false);
}
}  // namespace zero
