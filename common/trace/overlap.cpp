// SPDX-License-Identifier: MIT
#include "trace/overlap.hpp"

#include <algorithm>

namespace zero {
OverlapTimes overlap_times(std::span<const Slice> slices, int step) {
  struct Interval {
    Clock::time_point begin, end;
  };
  std::vector<Interval> computing;
  for (const Slice& slice : slices) {
    const Work& work = slice.work;
    const bool computes = work.type == Work::Type::compute && work.place() == Place::device;
    if (slice.track > 0 && computes) computing.emplace_back(slice.begin.time(), slice.end.time());
  }
  // Join intervals that overlap: time in which several streams compute counts once.
  std::ranges::sort(computing, {}, &Interval::begin);
  std::vector<Interval> joined;
  for (const Interval& work : computing) {
    if (joined.empty() || joined.back().end < work.begin) joined.push_back(work);
    joined.back().end = std::max(joined.back().end, work.end);
  }
  OverlapTimes times{};
  for (const Slice& slice : slices) {
    const Work::Type type = slice.work.type;
    const bool passes = type == Work::Type::message || type == Work::Type::transfer;
    if (slice.step != step || !passes) continue;
    OverlapTime& time = type == Work::Type::message
                            ? times.messages[slice.phase]
                            : times.transfers[slice.work.bus()][direction_to(slice.work.place())];
    const auto begin = slice.begin.time(), end = slice.end.time();
    std::chrono::nanoseconds hidden{};
    auto work = std::ranges::upper_bound(joined, begin, {}, &Interval::end);
    for (; work != joined.end() && work->begin < end; ++work) {
      hidden += std::min(work->end, end) - std::max(work->begin, begin);
    }
    time.hidden += hidden;
    time.exposed += end - begin - hidden;
  }
  return times;
}

void OverlapMeter::add(std::span<const Slice> taken, int present) {
  recent_.insert(recent_.end(), taken.begin(), taken.end());
  if (next_ == 0) next_ = present;
  for (; next_ < present - 1; ++next_) {
    times.add(overlap_times(recent_, next_));
    std::erase_if(recent_, [&](const Slice& slice) { return slice.step < next_; });
  }
}
}  // namespace zero
