// SPDX-License-Identifier: MIT
// A recording as a file, for ui.perfetto.dev and for the scripts that tell a run
// (notes/running.md).
#pragma once
#include <span>

#include "memory/state.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// The number behind the first `name` in the line; `none` where that does not stand.
double number_after(const char* name, const std::string& line, double none);

/// Of a run that is resumed, what was traced before.
struct EarlierTrace {
  std::string events{};  // a line each
  double orders = 0, end = 0;  // of a rank at most; in microseconds
};

/// The file's steps up to that one. Throws Error (usage) unless such ranks wrote it.
EarlierTrace read_trace(const std::string& path, std::int64_t steps, const Card& card,
                        const Layout& layout, Device& device);

/// The traced steps of all ranks in the Trace Event Format (JSON), on rank 0; empty on others. All
/// ranks must call it, streams idle. Microseconds of each host's own clock, since the first event
/// of its ranks; they and the orders go on after the earlier ones of rank 0.
std::string chrome_trace(Recorder& recorder, std::span<const Slice> slices,
                         const EarlierTrace& earlier, const Card& card, const Layout& layout,
                         Device& device, Communicator& comm);
}  // namespace zero
