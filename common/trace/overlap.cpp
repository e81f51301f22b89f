// SPDX-License-Identifier: MIT
#include "trace/overlap.hpp"

namespace zero {
OverlapTimes overlap_times(const Slices& tracks, int step, const Slices& before,
                           const Slices& after) {
  OverlapTimes times{};
  struct Interval {
    Clock::time_point begin, end;
    OverlapTime* time;  // of computing: none
  };
  std::vector<Interval> computing, messages, transfers;
  const auto see = [&](const std::vector<Slice>& slices) {
    for (const Slice& slice : slices) {
      const Work& work = slice.work;
      const bool of_step = slice.step == step;
      const Interval interval{slice.begin.time(), slice.end.time(), nullptr};
      if (work.sort == Work::Sort::compute && work.place == Place::device) {
        computing.push_back(interval);
      } else if (work.sort == Work::Sort::message && of_step) {
        messages.push_back(interval);
        messages.back().time = &times.messages[static_cast<int>(slice.phase)];
      } else if (work.sort == Work::Sort::transfer && of_step) {
        transfers.push_back(interval);
        transfers.back().time = &times.transfers[static_cast<int>(direction_to(work.place))];
      }
    }
  };
  for (const Slices* all : {&before, &tracks, &after}) {
    for (const auto& [name, slices] : *all) {
      if (name != "host") see(slices);
    }
  }
  for (auto* intervals : {&computing, &messages, &transfers}) {
    std::ranges::sort(*intervals, {}, &Interval::begin);
  }
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

  for (const auto* intervals : {&messages, &transfers}) {
    auto first = computing.begin();  // that may reach into the interval at hand, or a later one
    for (const Interval& interval : *intervals) {
      while (first != computing.end() && first->end <= interval.begin) ++first;
      std::chrono::nanoseconds hidden{};
      for (auto work = first; work != computing.end() && work->begin < interval.end; ++work) {
        hidden += std::min(work->end, interval.end) - std::max(work->begin, interval.begin);
      }
      interval.time->hidden += hidden;
      interval.time->exposed += interval.end - interval.begin - hidden;
    }
  }
  return times;
}

void OverlapMeter::add(const Slices& taken, int present) {
  for (const auto& [name, slices] : taken) {
    std::map<int, std::vector<Slice>> by_step;
    for (const Slice& slice : slices) by_step[slice.step].push_back(slice);
    for (auto& [step, of_step] : by_step) steps_[step].emplace_back(name, std::move(of_step));
  }
  const auto note = [](auto& kept, const auto& times) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      kept[i].exposed.push_back(times[i].exposed.count() / 1000);
      kept[i].hidden.push_back(times[i].hidden.count() / 1000);
    }
  };
  const Slices none;
  const auto slices_of = [&](int step) -> const Slices& {
    const auto found = steps_.find(step);
    return found == steps_.end() ? none : found->second;
  };
  for (auto step = steps_.upper_bound(measured_); step != steps_.end(); ++step) {
    if (step->first >= present) break;
    measured_ = step->first;
    const OverlapTimes times =
        overlap_times(step->second, measured_, slices_of(measured_ - 1), slices_of(measured_ + 1));
    note(messages, times.messages);
    note(transfers, times.transfers);
  }
  steps_.erase(steps_.begin(), steps_.lower_bound(measured_));
}
}  // namespace zero
