// SPDX-License-Identifier: MIT
#include "compute/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace zero {

namespace {

using namespace std::chrono_literals;

std::mutex list_mutex;  // guards all_progress
std::vector<Progress*> all_progress;

thread_local Progress* current = nullptr;

}  // namespace

Progress::Progress(std::string who)
    : who_(std::move(who)) {
  const std::lock_guard lock(list_mutex);
  all_progress.push_back(this);
}

Progress::~Progress() {
  const std::lock_guard lock(list_mutex);
  std::erase(all_progress, this);
}

Progress& Progress::of_host() {
  static Progress host("the host");
  return host;
}

Progress& Progress::of_caller() {
  return current ? *current : of_host();
}

Working::Working(Progress& progress)
    : progress_(progress),
      outer_(current) {
  if (outer_ == &progress_) return;
  current = &progress_;
  {
    const std::lock_guard lock(progress_.mutex_);
    progress_.task_ = {"a task", current_step, current_phase, {}};
  }
  ++progress_.count_;
}

Working::~Working() {
  if (outer_ == &progress_) return;
  ++progress_.count_;
  current = outer_;
}

void task_is(const std::string& what) {
  if (!current) return;
  const std::lock_guard lock(current->mutex_);
  current->task_.what = what;
}

void task_waits_for(std::vector<int> ranks) {
  if (!current) return;
  const std::lock_guard lock(current->mutex_);
  current->task_.missing = std::move(ranks);
}

void task_queued(Mark mark) {
  if (!current || !mark) return;
  const std::lock_guard lock(current->mutex_);
  auto& queued = current->queued_;
  while (!queued.empty() && queued.front().second->passed()) queued.pop_front();
  queued.emplace_back(current->task_, std::move(mark));
}

Watchdog::Watchdog(std::chrono::seconds limit, std::function<void(const std::string&)> expire)
    : limit_(limit),
      expire_(std::move(expire)),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  constexpr auto tick = 50ms;
  struct Seen {
    std::uint64_t count = 0;
    std::chrono::milliseconds for_so_long{};
  };
  std::map<Progress*, Seen> seen;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, tick, [&] { return closing_; })) {
    const std::lock_guard list_lock(list_mutex);
    bool late = false;
    for (Progress* progress : all_progress) {
      Seen& last = seen[progress];
      const std::uint64_t count = progress->count_;
      const bool same = count == last.count && count % 2 == 1;
      last = {count, same ? last.for_so_long + tick : 0ms};
      late |= last.for_so_long >= limit_;
    }
    if (!late) continue;
    // Of all that wait, the one to name knows for which ranks it waits, or at least what it is.
    std::tuple<int, std::chrono::milliseconds> best{-1, 0ms};
    Progress::Task task;
    std::string who;
    for (Progress* progress : all_progress) {
      const std::lock_guard task_lock(progress->mutex_);
      const auto waiting = std::find_if(progress->queued_.begin(),
                                        progress->queued_.end(),
                                        [](const auto& entry) { return !entry.second->passed(); });
      const bool in_queue = waiting != progress->queued_.end();
      if (!in_queue && progress->count_ % 2 == 0) continue;
      const Progress::Task& its = in_queue ? waiting->first : progress->task_;
      const int knows = in_queue || !its.missing.empty() ? 2 : progress != &Progress::of_host();
      const std::tuple rank{knows, seen[progress].for_so_long};
      if (rank <= best) continue;
      best = rank;
      task = its;
      who = progress->who_;
    }
    const std::string whom = task.missing.empty() ? ""
                                                  : fmt::format(" for rank{} {}",
                                                                task.missing.size() == 1 ? "" : "s",
                                                                fmt::join(task.missing, ", "));
    return expire_(fmt::format(
        "step {}, {}: {} on {} has waited {} s{}: a rank is stuck or gone, or a step takes longer "
        "than --timeout {} allows",
        task.step,
        name_of(task.phase),
        task.what,
        who,
        limit_.count(),
        whom,
        limit_.count()));
  }
}

}  // namespace zero
