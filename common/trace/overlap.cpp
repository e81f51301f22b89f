// SPDX-License-Identifier: MIT
#include "trace/overlap.hpp"

namespace zero {
OverlapTimes overlap_times(const Slices& tracks, int step) {
  struct Interval {
    Clock::time_point begin, end;
  };
  std::vector<Interval> computing;
  std::vector<std::pair<Interval, OverlapTime*>> passing;
  OverlapTimes times{};
  for (const auto& [name, slices] : tracks) {
    for (const Slice& slice : slices) {
      const Work& work = slice.work;
      const Interval interval{slice.begin.time(), slice.end.time()};
      if (name == "host") continue;
      if (work.sort == Work::Sort::compute && work.place == Place::device) {
        computing.push_back(interval);
      } else if (work.sort == Work::Sort::message && slice.step == step) {
        passing.emplace_back(interval, &times.messages[static_cast<int>(slice.phase)]);
      } else if (work.sort == Work::Sort::transfer && slice.step == step) {
        const Direction direction = direction_to(work.place);
        passing.emplace_back(interval, &times.transfers[static_cast<int>(direction)]);
      }
    }
  }
  // What computes on several streams at once counts once.
  std::ranges::sort(computing, {}, &Interval::begin);
  std::vector<Interval> joined;
  for (const Interval& work : computing) {
    if (joined.empty() || joined.back().end < work.begin) joined.push_back(work);
    joined.back().end = std::max(joined.back().end, work.end);
  }
  for (const auto& [interval, time] : passing) {
    std::chrono::nanoseconds hidden{};
    auto work = std::ranges::upper_bound(joined, interval.begin, {}, &Interval::end);
    for (; work != joined.end() && work->begin < interval.end; ++work) {
      hidden += std::min(work->end, interval.end) - std::max(work->begin, interval.begin);
    }
    time->hidden += hidden;
    time->exposed += interval.end - interval.begin - hidden;
  }
  return times;
}

void OverlapMeter::add(const Slices& taken, int present) {
  append(recent_, taken);
  while (std::ssize(steps) + 1 < present) {
    const int step = static_cast<int>(std::ssize(steps)) + 1;
    steps.push_back(overlap_times(recent_, step));
    for (auto& [name, slices] : recent_) {
      std::erase_if(slices, [&](const Slice& slice) { return slice.step < step; });
    }
  }
}
}  // namespace zero
