// SPDX-License-Identifier: MIT
// What a run says: progress, the closing table, the log in JSON lines: {"run"}, steps, {"summary"}.
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

/// Fingerprints of what one rank holds of each layer, whatever N, the layout and the order are:
/// `digest` of elements by their number in the whole model.
struct LayerDigests {
  Digests weights;  // master weights; of parts: the ranks' sums add up
  bool replicated = false;  // every rank holds all of them
  /// Of parameters and optimizer state held whole; else zeros, so that all chapters send as much.
  std::map<Kind, Digests> copies{};
};

/// weights(l): the rank's part of layer l's master weights. All work on the device must be done.
LayerDigests layer_digests(const Device& device, const Layout& layout,
                           const std::function<ConstView(int)>& weights);

/// Of all master weights. All ranks must call it; throws Error (numerics) on all if copies differ.
Digests digests_over_ranks(const LayerDigests& mine, Communicator& comm);

/// A run as all its ranks agree on it. Refers to what outlives it.
struct Run {
  const Card& card;
  const Options& options;
  const OptionValues& values;  // the same by name, for the log
  const Choice& choice;
  Device& device;
  const Layout& layout;
  Recorder& recorder;
};

/// The log's summary: counts beside predictions, of bytes, elements and copies; times in a step,
/// null where streams were not seen; `outcome`. All ranks must call it and have it: the largest of
/// each figure over the ranks, of padding the sum.
Json summarise(const Run& run, const Prediction& predicted, Prediction::Steps steps,
               const std::vector<OverlapTimes>& times, const Json& outcome, Communicator& comm);

/// Throws Error (numerics), on all ranks, when a count is not as predicted: a bug.
void check_counts(const Json& summary);

/// The closing table.
void print_table(const Json& summary, bool alone);

inline double milliseconds(std::chrono::duration<double, std::milli> time) { return time.count(); }

/// times: not empty; the first three do not count, where there are more: caches and pages are cold.
double median_ms(std::vector<std::chrono::microseconds> times);

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Rank 0 prints and logs; all ranks must call finish.
class Report {
 public:
  /// Throws Error (usage) when the log or the trace cannot be written.
  Report(const Run& run, Communicator& comm);

  void add(const StepResult& step);
  /// Prints and logs what became of a checkpoint of the present step, begun at `since`. what:
  /// "save" or "resume"; failure: why it was not saved, or empty. Each note is said on stderr.
  void tell(const char* what, const std::string& path, Clock::time_point since,
            const std::string& failure = "", const std::vector<std::string>& notes = {});
  /// digests_over_ranks, within a run.
  Digests check(const LayerDigests& digests);
  /// check(), then prints and logs the end, writes the trace. Throws as check() and check_counts()
  /// do, and when the last loss is not finite.
  void finish(const LayerDigests& digests);

 private:
  /// Takes what ended since the last time. present: the step at hand.
  void take_slices(int present);
  void print_step();
  /// Of the step at hand; in set-up of the one after which the run is resumed.
  std::int64_t step_number() const { return here.step ? here.step : run_.options.begin.steps; }
  void log(const Json& line);  // if there is a log
  /// Throws Error (usage), with nothing made or cut off, when one cannot be had.
  void open_outputs();
  /// Whole, in the place of the file that was there; into what is no regular file as it is.
  void write_trace(const std::string& text);

  const Run run_;
  Communicator& comm_;
  const Prediction predicted_;
  const bool prints_ = comm_.rank == 0 && !run_.options.quiet;
  const bool shows_progress_;  // on a terminal, between the lines that stay
  File log_{nullptr, std::fclose};
  File trace_{nullptr, std::fclose};  // of what is no regular file
  EarlierTrace earlier_;
  std::vector<Slice> kept_;  // to be traced
  Clock::time_point step_began_ = Clock::now();
  Clock::time_point line_began_;
  std::chrono::microseconds time_{};  // of the last step
  Latest<std::chrono::microseconds> times_;
  OverlapMeter overlap_;
  StepResult last_;
  std::int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  bool told_least_ = false;  // that the loss scale is
};
}  // namespace zero
