// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <condition_variable>

#include "compute/work.hpp"

namespace zero {
namespace {
using namespace std::chrono;

/// Counts time in which this process runs. Relaxed: else ThreadSanitizer would see fewer races.
constexpr auto tick = 50ms;
constexpr auto relaxed = std::memory_order_relaxed;

/// More time for tasks that name no rank they wait for: that rank's peers, which can, come first.
constexpr auto others_first = 1s;

/// All threads there are. Never destroyed: a job that is ended may run on while statics go.
struct Threads {
  std::atomic<int> ticks = 0;
  std::mutex mutex;  // guards the next
  std::vector<Watched*> all;
};
Threads& threads() {
  static Threads& never_destroyed = *new Threads;
  return never_destroyed;
}
int now() { return threads().ticks.load(relaxed); }

/// Of what stands still for `limit` that which says most; empty when nothing does.
std::string standstill(milliseconds limit) {
  const std::lock_guard lock(threads().mutex);
  // A lower bound; far less than 0 for a thread that is idle.
  const auto stands = [ticks = now()](const Watched* thread) -> milliseconds {
    return (ticks - thread->began.load(relaxed) - 1) * tick;
  };
  const auto is_over = [&](const Watched* thread) { return stands(thread) >= limit; };
  if (std::ranges::none_of(threads().all, is_over)) return "";
  for (Watched* thread : threads().all) {
    const std::lock_guard lock_of_thread(thread->mutex);
    // What a device was given and has not done says more than the task that waits for the device.
    const auto given =
        std::ranges::find_if(thread->queued, [](const auto& task) { return !task.done->passed(); });
    const bool by_device = given != thread->queued.end();
    const Watched::Task& task = by_device ? *given : thread->task;
    const auto& ranks = task.missing;
    if (!by_device && stands(thread) < limit + (ranks.empty() ? others_first : 0s)) continue;
    const char* whom = ranks.empty() ? "" : ranks.size() == 1 ? " for rank " : " for ranks ";
    return fmt::format(
        "step {}, {}: {} on {} has waited {} s{}{}: a rank is stuck or gone, or a step takes "
        "longer than --timeout allows",
        task.step, name_of(task.phase), words(task.work),
        task.stream ? std::string("stream ") + task.stream : "the host",
        duration_cast<seconds>(steady_clock::now() - task.since).count(), whom,
        fmt::join(ranks, ", "));
  }
  return "";
}
}  // namespace

Watched::Watched() {
  const std::lock_guard lock(threads().mutex);
  threads().all.push_back(this);
}

Watched::~Watched() {
  const std::lock_guard lock(threads().mutex);
  std::erase(threads().all, this);
}

Working::Working(const Work& work, const char* stream)
    : part_(here.watched.began.load(relaxed) != Watched::idle) {
  if (part_) return;
  Watched& mine = here.watched;
  const std::lock_guard lock(mine.mutex);
  mine.task = {work, stream, here.step, here.phase, steady_clock::now()};
  mine.began.store(now(), relaxed);
}

Working::~Working() {
  if (!part_) here.watched.began.store(Watched::idle, relaxed);
}

void task_waits_for(std::vector<int> ranks) {
  const std::lock_guard lock(here.watched.mutex);
  here.watched.task.missing = std::move(ranks);
}

void task_rests(const std::function<void()>& rest) {
  const bool within_a_task = here.watched.began.exchange(Watched::idle, relaxed) != Watched::idle;
  rest();
  if (!within_a_task) return;
  const std::lock_guard lock(here.watched.mutex);
  here.watched.task.since = steady_clock::now();
  here.watched.began.store(now(), relaxed);
}

void task_queued(Mark mark) {
  if (!mark || here.watched.began.load(relaxed) == Watched::idle) return;
  auto& [began, mutex, task, queued] = here.watched;
  const std::lock_guard lock(mutex);
  while (!queued.empty() && queued.front().done->passed()) queued.pop_front();
  queued.push_back(task);
  queued.back().done = std::move(mark);
}

std::jthread watchdog(milliseconds limit, std::function<void(const Error&)> expire) {
  return std::jthread([=](std::stop_token stop) {
    std::mutex mutex;  // guards nothing: to wait with
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stopped.wait_for(lock, stop, tick, [&] { return stop.stop_requested(); })) {
      threads().ticks.fetch_add(1, relaxed);
      const std::string sentence = standstill(limit);
      if (!sentence.empty()) return expire(Error(ExitCode::communication, sentence));
    }
  });
}
}  // namespace zero
