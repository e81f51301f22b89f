// SPDX-License-Identifier: MIT
// A refusal in one line: what is wrong, the exit code, the sentence. Apart, as nvcc cannot read
// {fmt}.
#pragma once
#include <fmt/format.h>

#include "memory/error.hpp"

namespace zero {
/// Throws Error with that sentence when something is `wrong`. Nothing in `with` may depend on what
/// finding that out did, as errno does: the order of the two is not known.
template <class... With>
void throw_if(bool wrong, ExitCode code, fmt::format_string<const With&...> why,
              const With&... with) {
  if (wrong) throw Error(code, fmt::format(why, with...));
}
}  // namespace zero
