// SPDX-License-Identifier: MIT
#include "compute/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace zero {
namespace {
using namespace std::chrono;

/// The watchdog counts ticks, not time, because ticks pass only while this process runs.
constexpr auto tick = 50ms;
/// If no task here names the rank it waits for, the watchdog waits 1 s more: another rank may know.
constexpr auto others_first = 1s;
/// A stronger order would order threads, so that ThreadSanitizer would see fewer races.
constexpr auto relaxed = std::memory_order_relaxed;

std::atomic<int> begun = 0, ended = 0;  // tasks
std::atomic<milliseconds> standstill{};  // time in which no task ended, if `limit` or more; else 0

/// The last task that began and is no wait: it says more than a wait. Read at a standstill only.
struct {
  std::atomic<const char*> what = "the start", stream;
  std::atomic<int> layer, step;
  std::atomic<Phase> phase;
} last;

/// The text on this standstill, if there is one yet. Never destroyed: a thread may outlive it.
std::string& told = *new std::string;
std::mutex mutex;  // guards `told`

std::string describe(const Work& work, const char* stream) {
  return describe(work) + " on " + (stream ? std::string("stream ") + stream : "the host");
}
auto seconds_still() { return duration_cast<seconds>(standstill.load(relaxed)).count(); }
}  // namespace

TaskScope::TaskScope(const Work& work, const char* stream) : work(work), stream(stream) {
  begun.fetch_add(1, relaxed);
  if (here.task) return;
  here.task = this;
  if (work.type == Work::Type::wait) return;
  last.what.store(work.what, relaxed), last.layer.store(work.layer, relaxed);
  last.stream.store(stream, relaxed), last.step.store(here.step, relaxed);
  last.phase.store(here.phase, relaxed);
}

TaskScope::~TaskScope() {
  if (here.task == this) here.task = nullptr;
  ended.fetch_add(1, relaxed);
}

void waits_for(const std::set<int>& ranks) {
  if (standstill.load(relaxed) == 0ms) return;
  const std::lock_guard lock(mutex);
  told = fmt::format("step {}, {}: {} has waited {} s for rank{} {}", here.step,
                     name_of(here.phase), describe(here.task->work, here.task->stream),
                     seconds_still(), ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::jthread watchdog(milliseconds limit, std::function<void(const Error&)> expire) {
  return std::jthread([=](std::stop_token stop) {
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    int seen = 0;
    for (auto still = 0ms;
         !stopped.wait_for(lock, stop, tick, [&] { return stop.stop_requested(); });) {
      const int now = ended.load(relaxed);
      const bool moves = now != std::exchange(seen, now) || now == begun.load(relaxed);
      still = moves ? 0ms : still + tick;
      standstill.store(still < limit ? 0ms : still, relaxed);
      if (still < limit) told.clear();
      if (told.empty() && still < limit + others_first) continue;
      if (told.empty()) {
        const Work work{.what = last.what.load(relaxed), .layer = last.layer.load(relaxed)};
        told = fmt::format("step {}, {}: since {} began, nothing has ended for {} s",
                           last.step.load(relaxed), name_of(last.phase.load(relaxed)),
                           describe(work, last.stream.load(relaxed)), seconds_still());
      }
      return expire(Error(ExitCode::communication,
                          told + ": a rank is stuck or gone, or an operation takes longer than "
                                 "--timeout allows"));
    }
  });
}
}  // namespace zero
