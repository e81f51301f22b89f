// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table of predicted and counted figures, and the log, JSON
// lines: one {"run"}, a line a step, one {"summary"}.
#pragma once
#include <cstdio>

#include "comm/communicator.hpp"
#include "report/prediction.hpp"
#include "train/verdict.hpp"

namespace zero {
/// A fingerprint of the master parameters, whatever N, the layout and the order are. By layer: the
/// sum, mod 2^64, of mix(mix(global element number) ^ bits) over the elements that one rank holds.
struct LayerDigests {
  std::vector<std::uint64_t> layers;
  bool replicated = false;  // every rank holds all of every layer; else the ranks' sums add up
};

/// Waits for the trainer's work first.
template <class Trainer> LayerDigests layer_digests(Trainer& trainer, const Layout& layout) {
  trainer.synchronise();
  LayerDigests digests;
  for (int l = 0; l < layout.layers(); ++l) {
    const auto slice = trainer.state(l);
    const OnHost host(slice.weights);
    const auto weights = host.template as<float>();
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < slice.weights.used; ++i) {
      const std::uint64_t number = layout.layer_start(l) + slice.weights.start + i;
      sum += mix(mix(number) ^ std::bit_cast<std::uint32_t>(weights[i]));
    }
    digests.layers.push_back(sum);
    digests.replicated = slice.weights.size == layout.layer_size(l);
  }
  return digests;
}

/// A run as all its ranks agree on it. Refers to what outlives it.
struct Run {
  const Chapter& chapter;
  const Options& options;
  const OptionValues& values;  // the same by name, for the log
  const Choice& choice;
  const Layout& layout;
  std::int64_t bytes_at_start;  // physical memory of the process before the run
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
  void print_step(const Verdict& step);

  const Run run_;
  Communicator& comm_;
  const Prediction predicted_;
  const bool prints_ = comm_.rank == 0 && !run_.options.quiet;
  const bool shows_progress_;  // on a terminal, between the lines that stay
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_{nullptr, std::fclose};
  Clock::time_point step_began_ = Clock::now();
  Clock::time_point line_began_;
  std::vector<std::int64_t> times_;  // of the steps, in microseconds
  std::int64_t skipped_ = 0;
};
}  // namespace zero
