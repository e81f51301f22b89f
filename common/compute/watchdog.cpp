// SPDX-License-Identifier: MIT
#include "compute/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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
}  // namespace

Progress::Progress(std::string who) : who_(std::move(who)) {
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

Working::Working(Progress& progress) : progress_(progress), outer_(current) {
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

std::chrono::milliseconds Progress::seen_again(std::chrono::milliseconds later) {
  const std::uint64_t count = count_;
  const bool same_task = count == seen_ && count % 2 == 1;
  seen_ = count;
  stands_ = same_task ? stands_ + later : 0ms;
  return stands_;
}

std::optional<Progress::Stuck> Progress::stuck(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  for (const auto& [task, mark] : queued_) {
    if (!mark->passed()) return Stuck{true, stands_, task, who_};
  }
  if (stands_ < limit) return {};
  return Stuck{!task_.missing.empty(), stands_, task_, who_};
}

Watchdog::Watchdog(std::chrono::milliseconds limit, std::function<void(const std::string&)> expire)
    : limit_(limit), expire_(std::move(expire)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, tick, [&] { return closing_; })) {
    if (const auto stuck = find_stuck()) return expire_(sentence(*stuck));
  }
}

std::optional<Progress::Stuck> Watchdog::find_stuck() const {
  const std::lock_guard lock(list().mutex);
  auto longest = 0ms;
  for (Progress* progress : list().all) longest = std::max(longest, progress->seen_again(tick));
  if (longest < limit_) return {};
  std::optional<Progress::Stuck> best;
  for (Progress* progress : list().all) {
    const auto stuck = progress->stuck(limit_);
    const auto worth = [](const auto& one) { return std::pair(one->by_others, one->stands); };
    if (stuck && (!best || worth(stuck) > worth(best))) best = stuck;
  }
  if (best && !best->by_others && longest < limit_ + others_first) return {};
  return best;
}

std::string Watchdog::sentence(const Progress::Stuck& stuck) const {
  const Progress::Task& task = stuck.task;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit_).count();
  const std::string whom = task.missing.empty()
                               ? ""
                               : fmt::format(" for rank{} {}", task.missing.size() == 1 ? "" : "s",
                                             fmt::join(task.missing, ", "));
  return fmt::format(
      "step {}, {}: {} on {} has waited {} s{}: a rank is stuck or gone, or a step takes longer "
      "than --timeout allows",
      task.step, name_of(task.phase), task.what, stuck.who, seconds, whom);
}
}  // namespace zero
