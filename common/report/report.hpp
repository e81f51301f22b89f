// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table of predicted and counted figures, and the log.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "report/digest.hpp"
#include "report/plan.hpp"

namespace zero {

class RunLog;

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

/// Rank 0 prints and logs; all ranks must call finish. `options` are the command's with the choice
/// in them. Throws Error (usage) when the log cannot be written.
class Report {
 public:
  Report(const Chapter& chapter,
         const Command& command,
         const Formulas& formulas,
         const Options& options,
         const Layout& layout,
         Ranks& ranks);
  ~Report();  // where RunLog is known

  void add(const StepReport& step);
  /// Throws Error (numerics) when ranks that hold the same parameters hold different ones.
  void finish(const LayerDigests& digests);

 private:
  using Clock = std::chrono::steady_clock;
  void print_header() const;
  void print_step(const StepReport& step, double ms);
  void print_summary(const Summary& summary) const;
  Summary summarise(const LayerDigests& digests);
  void add_digests(const LayerDigests& digests, Summary& summary);

  Chapter chapter_;
  std::string family_;
  Options options_;
  Ranks& ranks_;
  Prediction plan_;
  bool prints_;
  bool shows_progress_;  // on a terminal, between the lines that stay
  std::unique_ptr<RunLog> log_;
  Clock::time_point step_began_;
  Clock::time_point line_began_;
  std::vector<double> ms_;
  std::int64_t skipped_ = 0;
};

}  // namespace zero
