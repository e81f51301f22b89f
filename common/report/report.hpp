// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table of predicted and counted figures, and the log.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "report/digest.hpp"
#include "report/prediction.hpp"
#include "train/verdict.hpp"

namespace zero {

class RunLog;

/// A run as all its ranks agree on it. Refers to what outlives it.
struct Run {
  const Chapter& chapter;
  const Options& options;
  const Choice& choice;
  const Layout& layout;
  std::int64_t process_bytes_at_start;  // physical memory of the process before the run
};

/// The run's figures over all ranks, ready to print and to log.
struct Summary {
  struct Bytes {  // maxima over ranks
    std::int64_t reserved, resident, peak;
  };
  std::array<Bytes, kind_count> bytes{};
  Bytes total{};  // its peak: of the sum, as measured
  /// In use on a GPU beside what is reserved: its context, cuBLAS, NCCL. None on the CPU, nor where
  /// other ranks may use the same GPU.
  std::optional<std::int64_t> beyond;
  std::int64_t process_peak = 0;  // VmHWM above its value at the start, maximum over ranks
  std::array<std::array<std::int64_t, phase_count>, collective_count>
      sent{};  // by one rank, maximum
  std::int64_t padding = 0;  // all ranks together
  std::int64_t scalars = 0;  // by one rank, maximum
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  double median_ms = 0;  // after the third step, maximum over ranks
  std::vector<std::uint64_t> layer_digests;
  std::uint64_t digest = 0;  // sum of the layers'
};

/// Rank 0 prints and logs; all ranks must call finish. Throws Error (usage) when the log cannot be
/// written.
class Report {
 public:
  Report(const Run& run, Communicator& comm);
  ~Report();

  void add(const Verdict& step);
  /// Throws Error (numerics) when ranks that hold the same parameters hold different ones.
  void finish(const LayerDigests& digests);

 private:
  using Clock = std::chrono::steady_clock;
  void print_header() const;
  void print_step(const Verdict& step, double ms);
  void print_summary(const Summary& summary) const;
  Summary summarise(const LayerDigests& digests);
  void add_digests(const LayerDigests& digests, Summary& summary);

  const Run run_;
  Communicator& comm_;
  const Prediction plan_;
  bool prints_;
  std::FILE* terminal_ = nullptr;  // for the progress line; none when not on a terminal
  std::unique_ptr<RunLog> log_;
  Clock::time_point step_began_;
  Clock::time_point terminal_written_;
  std::vector<double> ms_;
  std::int64_t skipped_ = 0;
};

}  // namespace zero
