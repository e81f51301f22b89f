// SPDX-License-Identifier: MIT
// What a run comes to: the figures of the log's summary, as they are checked and printed.
#pragma once
#include <nlohmann/json.hpp>

#include "report/report.hpp"

namespace zero {
using Json = nlohmann::ordered_json;

/// The largest of the ranks' figures, which is what is told; all ranks must call it.
std::int64_t largest(Communicator& comm, std::int64_t figure);

/// Bytes of a rank: of each kind, and of all together; of the process, above its peak before the
/// run.
Json memory_json(const Run& run, const Prediction& predicted, Communicator& comm);

/// The same of what lies with the host.
Json host_memory_json(const Prediction& predicted, Communicator& comm);

/// Times in milliseconds, of a step; null where streams were not looked at.
struct Timed {
  Json exposed, hidden;
};
/// Elements sent: by the rank that sends most, but padding by all together.
Json traffic_json(const Prediction& predicted, Prediction::Steps steps,
                  const std::array<Timed, phase_count>& times, Communicator& comm);

/// Bytes over the bus, of the rank with most, and the times of its copies, by direction.
Json bus_json(const Prediction& predicted, Prediction::Steps steps,
              const std::array<Timed, 2>& times, Communicator& comm);

/// Throws Error (numerics), on all ranks, when a count is not as predicted: a bug, of ours or of
/// the formula.
void check_counts(const Json& summary);

/// The closing tables: figures of the log's summary.
void print_tables(const Json& summary, bool alone);
}  // namespace zero
