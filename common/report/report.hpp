// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table of predicted and counted figures, and the log, JSON
// lines: one {"run"}, a line a step, one {"summary"}.
#pragma once
#include <cstdio>

#include "comm/communicator.hpp"
#include "report/prediction.hpp"
#include "trace/memory_phases.hpp"
#include "trace/overlap.hpp"
#include "train/verdict.hpp"

namespace zero {
/// Fingerprints of what one rank holds of each layer, whatever N, the layout and the order are: of
/// a tensor the sum, mod 2^64, of mix(mix(global element number) ^ bits) over its elements.
struct LayerDigests {
  std::vector<std::uint64_t> weights;  // master weights; of parts: the ranks' sums add up
  bool replicated = false;  // every rank holds all of them
  /// Of all parameters, and of all optimizer state, that lies whole on every rank.
  std::vector<std::uint64_t> parameters, optimizer;
};

/// weights(l): the rank's part of layer l's master weights. All work must be done.
LayerDigests layer_digests(const Layout& layout, const std::function<View(int)>& weights);

/// All ranks' master weights, by layer; all must call it. Throws Error (numerics), on all ranks,
/// when some differ that should hold the same.
std::vector<std::uint64_t> digests_over_ranks(const LayerDigests& mine, Communicator& comm);

/// A run as all its ranks agree on it. Refers to what outlives it.
struct Run {
  const Chapter& chapter;
  const Options& options;
  const OptionValues& values;  // the same by name, for the log
  const Choice& choice;
  const Layout& layout;
  const std::array<Footprint, 3>& footprints;  // before the run, with Communicator, with Trainer
  Recorder& recorder;
};

/// Rank 0 prints and logs; all ranks must call finish.
class Report {
 public:
  /// Throws Error (usage) when the log or the trace cannot be written.
  Report(const Run& run, Communicator& comm);

  void add(const Verdict& step);
  /// digests_over_ranks, within a run.
  std::vector<std::uint64_t> check(const LayerDigests& digests);
  /// Does that, prints and logs the end, writes the trace. Returns 0, the exit code. Throws Error
  /// (numerics), on all ranks, then too when a count is not as predicted or the last loss is not
  /// finite.
  int finish(const LayerDigests& digests);

 private:
  /// What ended since the last time. present: the step at hand, later ones are none yet.
  void take_slices(int present);
  void print_step();

  const Run run_;
  Communicator& comm_;
  const Prediction predicted_;
  const bool prints_ = comm_.rank == 0 && !run_.options.quiet;
  const bool shows_progress_;  // on a terminal, between the lines that stay
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  File log_{nullptr, std::fclose}, trace_file_{nullptr, std::fclose};
  Slices kept_;  // to be traced, or told
  Clock::time_point step_began_ = Clock::now();
  Clock::time_point line_began_;
  std::vector<std::chrono::microseconds> times_;  // of the steps
  OverlapMeter overlap_;
  Verdict last_;
  std::int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  bool told_least_ = false;  // that the loss scale is
};
}  // namespace zero
