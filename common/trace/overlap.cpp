// SPDX-License-Identifier: MIT
#include "trace/overlap.hpp"

namespace zero {
MessageTimes message_times(const Slices& tracks) {
  struct Interval {
    Clock::time_point begin, end;
    Phase phase;
  };
  std::vector<Interval> computing, messages;
  for (const auto& [name, slices] : tracks) {
    if (name == "host") continue;
    for (const Slice& slice : slices) {
      const Work::Sort sort = slice.work.sort;
      if (sort != Work::Sort::compute && sort != Work::Sort::message) continue;
      (sort == Work::Sort::compute ? computing : messages)
          .push_back({slice.begin.time(), slice.end.time(), slice.phase});
    }
  }
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  std::ranges::sort(computing, by_begin);
  std::ranges::sort(messages, by_begin);

  MessageTimes times{};
  auto first = computing.begin();  // that may reach into the message at hand, or a later one
  for (const Interval& message : messages) {
    while (first != computing.end() && first->end <= message.begin) ++first;
    MessageTime& time = times[static_cast<int>(message.phase)];
    std::chrono::nanoseconds hidden{};
    for (auto work = first; work != computing.end() && work->begin < message.end; ++work) {
      hidden += std::min(work->end, message.end) - std::max(work->begin, message.begin);
    }
    time.hidden += hidden;
    time.exposed += message.end - message.begin - hidden;
  }
  return times;
}
}  // namespace zero
