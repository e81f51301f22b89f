// SPDX-License-Identifier: MIT
// What a GPU did when: events around the tasks of two streams, and arithmetic on intervals of time.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compute/cuda/check.hpp"
#include "compute/stream.hpp"

namespace zero {
/// Milliseconds since a step's begin.
struct Interval {
  double length() const { return end - begin; }
  double begin, end;
};
using Intervals = std::vector<Interval>;

inline double length(const Intervals& intervals) {
  return std::accumulate(intervals.begin(), intervals.end(), 0.0,
                         [](double sum, Interval i) { return sum + i.length(); });
}

/// The time that lies in any of them, in order and apart.
inline Intervals merged(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](Interval a, Interval b) { return a.begin < b.begin; });
  Intervals apart;
  for (const Interval& next : intervals) {
    if (apart.empty() || apart.back().end < next.begin) {
      apart.push_back(next);
    } else {
      apart.back().end = std::max(apart.back().end, next.end);
    }
  }
  return apart;
}

/// The part of `one` that lies in `apart`.
inline double covered(Interval one, const Intervals& apart) {
  double sum = 0;
  for (const Interval& i : apart) {
    sum += std::max(0.0, std::min(one.end, i.end) - std::max(one.begin, i.begin));
  }
  return sum;
}

class TimingEvent {
 public:
  explicit TimingEvent(cudaStream_t stream) {
    cuda::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDefault));
    cuda::check_cuda(cudaEventRecord(event_, stream));
  }
  ~TimingEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  TimingEvent(TimingEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimingEvent& operator=(TimingEvent&&) = delete;

  double milliseconds_since(const TimingEvent& earlier) const {
    float milliseconds = 0;
    cuda::check_cuda(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

enum class Work { compute, gather, reduce_scatter };
constexpr int work_count = 3;
/// Of a step, one list for each Work.
using Trace = std::array<Intervals, work_count>;

/// What ran when on two streams, by timing events at both ends of their tasks. A stream's thread
/// writes its own lists only; the host reads them when both are idle.
class Recorder {
 public:
  /// Sees the streams that are made from now on until it goes.
  Recorder() {
    Stream::observe([this](const std::string& stream, Phase, Kernels& on, bool begins) {
      TimingEvent now(static_cast<cudaStream_t>(on.queue()));
      const bool compute = stream == "compute";
      auto& begin = begin_[compute];
      if (begins) {
        begin.emplace(std::move(now));
        if (!compute) message = Work::compute;
      } else if (compute || message != Work::compute) {  // else a task that sends nothing
        spans_[static_cast<int>(compute ? Work::compute : message)].push_back(
            {std::move(*begin), std::move(now)});
      }
      if (!begins) begin.reset();
    });
  }
  ~Recorder() { Stream::observe(nullptr); }

  void restart() {
    for (auto& spans : spans_) spans.clear();
    origin_.emplace(nullptr);
  }

  Trace trace() const {
    Trace trace;
    for (int work = 0; work < work_count; ++work) {
      for (const auto& [begin, end] : spans_[work]) {
        trace[work].push_back(
            {begin.milliseconds_since(*origin_), end.milliseconds_since(*origin_)});
      }
    }
    return trace;
  }

  Work message = Work::compute;  // what the present task of the other stream sends, if anything

 private:
  std::array<std::vector<std::pair<TimingEvent, TimingEvent>>, work_count> spans_;
  std::array<std::optional<TimingEvent>, 2> begin_;  // of the present task of each stream
  std::optional<TimingEvent> origin_;
};
}  // namespace zero
