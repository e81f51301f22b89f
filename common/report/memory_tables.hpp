// SPDX-License-Identifier: MIT
// Memory by phase, and what the system says beside it.
#pragma once
#include "report/summary.hpp"

namespace zero {
/// For set-up (its phase is "start") and for each phase of the first two steps, in order: bytes in
/// use at its end by kind and together, change and peak, of the rank whose peak is largest; what
/// the chapter's formulas predict by kind; in use and peak, added over all ranks. All ranks must
/// call it.
Json phases_json(const Run& run, const Prediction& predicted, int steps, Communicator& comm);

/// What the system says that the process holds, or that is in use on the GPU: rows that add up to
/// "total", of the rank with the largest total. Null where the system does not say, or where ranks
/// share a GPU. All ranks must call it.
Json process_json(const Run& run, Communicator& comm);

/// The tables of --memory: figures of the log's summary, in 80 columns.
void print_memory(const Json& summary);
}  // namespace zero
