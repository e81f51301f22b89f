// SPDX-License-Identifier: MIT
// Writes a recording for ui.perfetto.dev, and for scripts that narrate a run (notes/running.md).
#pragma once
#include <span>

#include "memory/state.hpp"
#include "trace/recorder.hpp"

namespace zero {
/// Returns the number behind the first `name` in the line; `none` if there is none.
double number_after(const char* name, const std::string& line, double none);

/// What an earlier run, which is now resumed, has traced.
struct EarlierTrace {
  std::string events{};  // one per line
  double actions = 0, end = 0;  // the most actions of a rank; the last event's end, in us
};

/// Reads a trace up to step `steps`. Throws Error (usage) if its chapter, model or N is another.
EarlierTrace read_trace(const std::string& path, std::int64_t steps, const Card& card,
                        const Layout& layout, Device& device);

/// Returns all ranks' traced steps in the Trace Event Format (JSON) on rank 0, on others "".
/// All ranks must call it, with idle streams. Times are microseconds since the first event of a
/// host's ranks, by the host's clock. Times and order numbers go on where rank 0's `earlier` ends.
std::string chrome_trace(Recorder& recorder, std::span<const Slice> slices,
                         const EarlierTrace& earlier, const Card& card, const Layout& layout,
                         Device& device, Communicator& comm);
}  // namespace zero
