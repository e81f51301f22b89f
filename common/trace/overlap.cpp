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
  // What computes on several streams at once counts once.
  std::size_t last = 0;
  for (std::size_t i = 1; i < computing.size(); ++i) {
    if (computing[i].begin <= computing[last].end) {
      computing[last].end = std::max(computing[last].end, computing[i].end);
    } else {
      computing[++last] = computing[i];
    }
  }
  if (!computing.empty()) computing.resize(last + 1);

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

void MessageMeter::add(const Slices& taken, int present) {
  for (const auto& [name, slices] : taken) {
    std::map<int, std::vector<Slice>> by_step;
    for (const Slice& slice : slices) by_step[slice.step].push_back(slice);
    for (auto& [step, of_step] : by_step) incomplete_[step].emplace_back(name, std::move(of_step));
  }
  const auto complete = incomplete_.lower_bound(present);
  for (auto step = incomplete_.begin(); step != complete; ++step) {
    if (step->first == 0) continue;  // before the first
    const MessageTimes times = message_times(step->second);
    for (int phase = 0; phase < phase_count; ++phase) {
      exposed[phase].push_back(times[phase].exposed.count() / 1000);
      hidden[phase].push_back(times[phase].hidden.count() / 1000);
    }
  }
  incomplete_.erase(incomplete_.begin(), complete);
}
}  // namespace zero
