// SPDX-License-Identifier: MIT
// What a GPU did when: events around the tasks of two streams, and arithmetic on intervals of time.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "compute/cuda/cuda_kernels.hpp"
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

/// The part of `one` that lies in `apart`, of which no two overlap.
inline double covered(Interval one, const Intervals& apart) {
  double sum = 0;
  for (const Interval& i : apart) {
    sum += std::max(0.0, std::min(one.end, i.end) - std::max(one.begin, i.begin));
  }
  return sum;
}

/// Of CUDA, with a time.
using TimingEvent = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;

inline TimingEvent record_time(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  cuda::check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault));
  TimingEvent owned(event, cudaEventDestroy);
  cuda::check_cuda(cudaEventRecord(event, stream));
  return owned;
}

inline double milliseconds(const TimingEvent& from, const TimingEvent& to) {
  float time = 0;
  cuda::check_cuda(cudaEventElapsedTime(&time, from.get(), to.get()));
  return time;
}

enum class Work { compute, gather, reduce_scatter };
constexpr int work_count = 3;
/// Of a step, one list for each Work, in order.
using Trace = std::array<Intervals, work_count>;

/// What ran when on two streams, by timing events at both ends of their tasks. A stream's thread
/// writes its own lists only; the host reads them when both are idle.
class Recorder {
 public:
  /// Sees the streams that are made from now on until it goes.
  Recorder() {
    Stream::observe([this](const std::string& stream, Phase, Kernels& on, bool begins) {
      const auto queue = static_cast<cudaStream_t>(on.queue());
      const TimingEvent now = record_time(queue);
      const bool compute = stream == "compute";
      cuda::check_cuda(cudaStreamGetPriority(queue, &priority[compute]));
      if (begins) {
        begin_[compute] = now;
        if (!compute) message = Work::compute;
      } else if (compute || message != Work::compute) {  // else a task that sends nothing
        spans_[static_cast<int>(compute ? Work::compute : message)].push_back(
            {begin_[compute], now});
      }
    });
  }
  ~Recorder() { Stream::observe(nullptr); }

  void restart() {
    for (auto& spans : spans_) spans.clear();
    origin_ = record_time(nullptr);
  }

  Trace trace() const {
    Trace trace;
    for (int work = 0; work < work_count; ++work) {
      for (const auto& [begin, end] : spans_[work]) {
        trace[work].push_back({milliseconds(origin_, begin), milliseconds(origin_, end)});
      }
    }
    return trace;
  }

  std::array<int, 2> priority{};  // of the other stream and of compute: the smaller goes first
  Work message = Work::compute;  // what the present task of the other stream sends, if anything

 private:
  std::array<std::vector<std::pair<TimingEvent, TimingEvent>>, work_count> spans_;
  std::array<TimingEvent, 2> begin_;  // of the last task of each stream
  TimingEvent origin_;
};
}  // namespace zero
