// SPDX-License-Identifier: MIT
#include "compute/watchdog.hpp"

#include <fmt/format.h>

#include <condition_variable>

namespace zero {
namespace {
using namespace std::chrono;

/// Time in which this process runs is counted in ticks. Relaxed, as whatever tasks and the watchdog
/// share: it is to order no two threads, or ThreadSanitizer would see fewer races.
constexpr auto tick = 50ms;
std::atomic<int> ticks = 0;
constexpr auto relaxed = std::memory_order_relaxed;

/// So much longer may a task stand that says of no rank that it waits for it: that rank's peers,
/// which can name it, come first.
constexpr auto others_first = 1s;

/// All there are. Never destroyed: a job that is ended may run on while statics go.
struct List {
  std::mutex mutex;  // guards all
  std::vector<Progress*> all;
};
List& list() {
  static List& never_destroyed = *new List;
  return never_destroyed;
}

/// Of what stands still for `limit` that which says most; empty when nothing does.
std::string standstill(milliseconds limit) {
  const std::lock_guard lock(list().mutex);
  // At least so long; who is idle far less than no time.
  const auto stands = [now = ticks.load(relaxed)](const Progress* progress) -> milliseconds {
    return (now - progress->began.load(relaxed) - 1) * tick;
  };
  const auto is_over = [&](const Progress* progress) { return stands(progress) >= limit; };
  if (std::ranges::none_of(list().all, is_over)) return "";
  for (Progress* progress : list().all) {
    const std::lock_guard lock_of_thread(progress->mutex);
    // What a device was given and has not done says more than the task that waits for the device.
    const auto given = std::ranges::find_if(progress->queued,
                                            [](const auto& task) { return !task.done->passed(); });
    const bool by_device = given != progress->queued.end();
    const Progress::Label& task = by_device ? *given : progress->task;
    const auto& ranks = task.missing;
    if (!by_device && stands(progress) < limit + (ranks.empty() ? others_first : 0s)) continue;
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

Progress::Progress() {
  const std::lock_guard lock(list().mutex);
  list().all.push_back(this);
}

Progress::~Progress() {
  const std::lock_guard lock(list().mutex);
  std::erase(list().all, this);
}

Working::Working(const Work& work, const char* stream)
    : part_(progress_here.began.load(relaxed) != Progress::idle) {
  if (part_) return;
  Progress& mine = progress_here;
  const std::lock_guard lock(mine.mutex);
  mine.task = {stream, work, current_step, current_phase};
  mine.began.store(ticks.load(relaxed), relaxed);
}

Working::~Working() {
  if (!part_) progress_here.began.store(Progress::idle, relaxed);
}

void task_waits_for(std::vector<int> ranks) {
  const std::lock_guard lock(progress_here.mutex);
  progress_here.task.missing = std::move(ranks);
}

void task_rests(const std::function<void()>& rest) {
  const bool within_a_task =
      progress_here.began.exchange(Progress::idle, relaxed) != Progress::idle;
  rest();
  if (!within_a_task) return;
  const std::lock_guard lock(progress_here.mutex);
  progress_here.task.since = steady_clock::now();
  progress_here.began.store(ticks.load(relaxed), relaxed);
}

void task_queued(Mark mark) {
  if (!mark || progress_here.began.load(relaxed) == Progress::idle) return;
  auto& [began, mutex, task, queued] = progress_here;
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
      ticks.fetch_add(1, relaxed);
      const std::string sentence = standstill(limit);
      if (!sentence.empty()) return expire(Error(ExitCode::communication, sentence));
    }
  });
}
}  // namespace zero
