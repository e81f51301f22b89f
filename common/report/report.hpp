// SPDX-License-Identifier: MIT
// Prints progress and a table. Logs JSON lines: {"run"}, {"resume"}, steps, {"save"}, {"summary"}.
#pragma once
#include <cstdio>
#include <map>
#include <nlohmann/json_fwd.hpp>

#include "comm/communicator.hpp"
#include "report/prediction.hpp"
#include "trace/chrome_trace.hpp"
#include "trace/overlap.hpp"
#include "train/step.hpp"

namespace zero {
using Json = nlohmann::ordered_json;

using Digests = std::vector<std::uint64_t>;  // by layer

/// Fingerprints of what one rank holds of each layer. The digests of a layer's shards add up to a
/// sum that does not depend on N or the cut: digest() numbers elements as in the whole model.
struct LayerDigests {
  Digests weights;  // of the fp32 weights that Adam updates on this rank
  bool replicated = false;  // every rank holds all of these weights
  /// Digests of parameters and optimizer state that several ranks each hold whole; else zeros.
  std::map<Kind, Digests> copies{};
};

/// Digests this rank's state; streams must be idle. weights(l): its part of layer l's weights.
LayerDigests layer_digests(const Device& device, const Layout& layout,
                           const std::function<ConstView(int)>& weights);

/// All ranks must call it. Returns whole layers' digests; throws Error (numerics) if copies differ.
Digests digests_over_ranks(const LayerDigests& mine, Communicator& comm);

/// A run as this rank has set it up. All that it refers to must outlive it.
struct Run {
  const Card& card;
  const Options& options;
  const OptionValues& values;  // the options by name, for the log
  const Choice& choice;
  Device& device;
  const Layout& layout;
  Recorder& recorder;
};

/// Returns the log's summary: bytes held, elements sent, bytes copied, predicted and counted; the
/// ms of messages and copies in a step, null if no streams were recorded; and `outcome`'s entries.
/// All ranks must call it. A figure, as median_ms, is the largest over ranks; of padding, the sum.
Json summarise(const Run& run, const Prediction& predicted, Prediction::Steps steps,
               const std::vector<OverlapTimes>& times, const Json& outcome, Communicator& comm);

/// Throws Error (numerics), on all ranks, when a count is not as predicted: a bug.
void check_counts(const Json& summary);

/// Prints the closing table. alone: there is one rank, which sends nothing.
void print_table(const Json& summary, bool alone);

inline double milliseconds(std::chrono::duration<double, std::milli> time) { return time.count(); }

/// times: not empty. If there are more than three, the first three do not count: caches are cold.
double median_ms(std::vector<std::chrono::microseconds> times);

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Reports a run: rank 0 prints and logs. All ranks must call check() and finish().
class Report {
 public:
  /// Throws Error (usage) when the log or the trace cannot be used.
  Report(const Run& run, Communicator& comm);

  void add(const StepResult& step);  // call it after each step: logs the step, may print it
  /// Prints and logs how the saving or loading of a checkpoint, begun at `since`, has ended. what:
  /// "save" or "resume"; failure: why it was not saved, or empty; notes: printed on stderr.
  void tell(const char* what, const std::string& path, Clock::time_point since,
            const std::string& failure = "", const std::vector<std::string>& notes = {});
  /// Calls digests_over_ranks(), whose time counts for no step.
  Digests check(const LayerDigests& digests);
  /// Calls check(), prints and logs the end, writes the trace. Throws like check() and
  /// check_counts(), and if the last loss is not finite.
  void finish(const LayerDigests& digests);

 private:
  /// Takes from the recorder the slices that ended since the last call. present: see OverlapMeter.
  void take_slices(int present);
  void print_step();
  /// Returns the present step; in set-up, the step after which the run is resumed.
  std::int64_t step_number() const { return here.step ? here.step : run_.options.begin.steps; }
  void log(const Json& line);  // if there is a log
  /// Opens log and trace. If one cannot be used, throws Error (usage); files stay as they were.
  void open_outputs();
  /// Replaces a regular file in one moment, by renaming; writes into a pipe, a link or a device.
  void write_trace(const std::string& text);

  const Run run_;
  Communicator& comm_;
  const Prediction predicted_;
  const bool prints_ = comm_.rank == 0 && !run_.options.quiet;
  const bool shows_progress_;  // rewrites one line on a terminal, between the lines that stay
  File log_{nullptr, std::fclose};
  File trace_{nullptr, std::fclose};  // open only if it exists and is no regular file
  EarlierTrace earlier_;  // what the trace of the resumed run has already
  std::vector<Slice> kept_;  // of the steps that are traced
  Clock::time_point step_began_ = Clock::now();
  Clock::time_point line_began_;  // when print_step() last printed
  std::chrono::microseconds time_{};  // of the last step
  Latest<std::chrono::microseconds> times_;  // of steps
  OverlapMeter overlap_;
  StepResult last_;
  std::int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  bool told_least_ = false;  // whether the user was told that the loss scale gets no smaller
};
}  // namespace zero
