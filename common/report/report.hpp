// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table of predicted and counted figures, and the log, JSON
// lines: one {"run"}, a line a step, one {"summary"}.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "report/digest.hpp"
#include "report/prediction.hpp"
#include "train/options.hpp"
#include "train/verdict.hpp"

namespace zero {
/// A run as all its ranks agree on it. Refers to what outlives it.
struct Run {
  const Chapter& chapter;
  const Options& options;
  const OptionValues& values;  // the same by name, for the log
  const Choice& choice;
  const Layout& layout;
  std::int64_t process_bytes_at_start;  // physical memory of the process before the run
};

/// Rank 0 prints and logs; all ranks must call finish.
class Report {
 public:
  /// Throws Error (usage) when the log cannot be written.
  Report(const Run& run, Communicator& comm);

  void add(const Verdict& step);
  /// Throws Error (numerics) when ranks that hold the same parameters hold different ones.
  void finish(const LayerDigests& digests);

 private:
  using Clock = std::chrono::steady_clock;
  void print_header() const;
  void print_step(const Verdict& step, double ms);
  void write(const std::string& line);

  const Run run_;
  Communicator& comm_;
  const Prediction predicted_;
  const bool prints_;
  const bool shows_progress_;  // on a terminal, between the lines that stay
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_;
  Clock::time_point step_began_;
  Clock::time_point line_began_;
  std::vector<double> ms_;
  std::int64_t skipped_ = 0;
};
}  // namespace zero
