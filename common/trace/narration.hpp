// SPDX-License-Identifier: MIT
// One step of a small model, told with its numbers, from what the recorder saw.
#pragma once
#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// Which rank owns each element of each layer, and what this rank holds throughout.
std::string holdings(const Layout& layout);

/// The first step: what is computed, sent and taken and given back, in the order in which it was,
/// and the values that each rank then has; on rank 0, empty on others. All ranks must call it, when
/// the streams are idle. taken: all slices of a step whose streams are one after the other, with
/// values; booked: what its ledger says.
std::string narration(const Slices& taken, const std::vector<Booked>& booked, const Layout& layout,
                      Communicator& comm);
}  // namespace zero
