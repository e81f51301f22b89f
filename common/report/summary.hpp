// SPDX-License-Identifier: MIT
// What a run comes to: the log's summary, from which counts are checked and tables are printed.
#pragma once
#include <nlohmann/json.hpp>

#include "report/report.hpp"

namespace zero {
using Json = nlohmann::ordered_json;

inline double milliseconds(std::chrono::microseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// Without the first three, where there are more: caches and pages are cold. times: not empty.
double median_ms(std::vector<std::chrono::microseconds> times);

/// What this rank counted, beside what its chapter's formulas predict: bytes held, by kind and, in
/// the set-up (its phase is "start") and the first two steps, by phase; elements sent, with the
/// times of messages in a step, null where streams were not looked at; the same with the host and
/// over the bus; what the system says that the process holds, rows that add up to "total"; and the
/// run's outcome.
Json summary_of_rank(const Run& run, const Prediction& predicted, Prediction::Steps steps,
                     const std::vector<OverlapTimes>& times, const Json& outcome,
                     const Communicator& comm);

/// The ranks' figures as one, on all: the largest of each; but padding is all ranks' together, as
/// are "all_ranks" of a phase, whose others are of the rank with the largest peak, and the process
/// is the one with the largest total, null where none is known. All ranks must call it.
Json over_ranks(const Json& mine, Communicator& comm);

/// Throws Error (numerics), on all ranks, when a count is not as predicted: a bug, of ours or of
/// the formula.
void check_counts(const Json& summary);

/// The closing tables.
void print_tables(const Json& summary, bool alone);

/// The tables of --memory, in 80 columns: memory by phase, and what the system says beside it.
void print_memory(const Json& summary);
}  // namespace zero
