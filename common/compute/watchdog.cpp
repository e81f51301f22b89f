// SPDX-License-Identifier: MIT
#include "compute/watchdog.hpp"

#include <fmt/format.h>

#include <condition_variable>

namespace zero {
namespace {
using namespace std::chrono_literals;

constexpr auto tick = 50ms;
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

thread_local Progress* current = nullptr;

/// Of what stands still for `limit` that which says most; empty when nothing does.
std::string standstill(std::chrono::milliseconds limit) {
  const std::lock_guard lock(list().mutex);
  auto longest = 0ms;
  for (Progress* progress : list().all) {
    const std::uint64_t count = progress->count;
    const bool same_task = count == progress->seen && count % 2 == 1;
    progress->seen = count;
    progress->stands = same_task ? progress->stands + tick : 0ms;
    longest = std::max(longest, progress->stands);
  }
  if (longest < limit) return "";

  // What a device has been given and not done counts before the task that waits for the device, and
  // who waits for others, or for what its device does with them, before who does not.
  std::pair best{false, 0ms};
  std::string sentence;
  for (Progress* progress : list().all) {
    const std::lock_guard lock_of_stream(progress->mutex);
    const auto& queued = progress->queued;
    const auto given = std::find_if(queued.begin(), queued.end(),
                                    [](const auto& task) { return !task.second->passed(); });
    const bool by_device = given != queued.end();
    if (!by_device && progress->stands < limit) continue;
    const Progress::Task& task = by_device ? given->first : progress->task;
    const std::pair worth{by_device || !task.missing.empty(), progress->stands};
    if (!sentence.empty() && worth <= best) continue;
    best = worth;
    std::string whom;
    for (const int rank : task.missing) {
      const char* first = task.missing.size() == 1 ? " for rank " : " for ranks ";
      whom += fmt::format("{}{}", whom.empty() ? first : ", ", rank);
    }
    sentence = fmt::format(
        "step {}, {}: {} on {} has waited {} s{}: a rank is stuck or gone, or a step takes longer "
        "than --timeout allows",
        task.step, name_of(task.phase), words(task.work), progress->who,
        std::chrono::duration_cast<std::chrono::seconds>(limit).count(), whom);
  }
  const bool by_others = best.first;
  return by_others || longest >= limit + others_first ? sentence : "";
}
}  // namespace

Progress::Progress(std::string who) : who(std::move(who)) {
  const std::lock_guard lock(list().mutex);
  list().all.push_back(this);
}

Progress::~Progress() {
  const std::lock_guard lock(list().mutex);
  std::erase(list().all, this);
}

Progress& Progress::of_host() {
  static Progress& never_destroyed = *new Progress("the host");
  return never_destroyed;
}

Progress& Progress::of_caller() { return current ? *current : of_host(); }

Working::Working(Progress& progress, const Work& work) : progress_(progress), outer_(current) {
  if (outer_ == &progress_) return;
  current = &progress_;
  {
    const std::lock_guard lock(progress_.mutex);
    progress_.task = {work, current_step, current_phase, {}};
  }
  ++progress_.count;
}

Working::~Working() {
  if (outer_ == &progress_) return;
  ++progress_.count;
  current = outer_;
}

void task_waits_for(std::vector<int> ranks) {
  if (!current) return;
  const std::lock_guard lock(current->mutex);
  current->task.missing = std::move(ranks);
}

void task_goes_on() {
  if (current) current->count += 2;
}

void task_queued(Mark mark) {
  if (!current || !mark) return;
  const std::lock_guard lock(current->mutex);
  auto& queued = current->queued;
  while (!queued.empty() && queued.front().second->passed()) queued.pop_front();
  queued.emplace_back(current->task, std::move(mark));
}

Watchdog::Watchdog(std::chrono::milliseconds limit, std::function<void(const std::string&)> expire)
    : thread_([=](std::stop_token stop) {
        std::mutex mutex;  // guards nothing: to wait with
        std::condition_variable_any stopped;
        std::unique_lock lock(mutex);
        while (!stopped.wait_for(lock, stop, tick, [&] { return stop.stop_requested(); })) {
          const std::string sentence = standstill(limit);
          if (!sentence.empty()) return expire(sentence);
        }
      }) {}
}  // namespace zero
