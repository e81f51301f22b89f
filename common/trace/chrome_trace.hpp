// SPDX-License-Identifier: MIT
// A recording as a file, for ui.perfetto.dev and for the scripts that tell a run
// (notes/running.md).
#pragma once
#include <span>

#include "memory/state.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// The traced steps of all ranks in the Trace Event Format (JSON), on rank 0; empty on others. All
/// ranks must call it, streams idle. Microseconds of each host's own clock, since the first event
/// of its ranks.
std::string chrome_trace(Recorder& recorder, std::span<const Slice> slices, const Card& card,
                         const Layout& layout, Device& device, Communicator& comm);
}  // namespace zero
