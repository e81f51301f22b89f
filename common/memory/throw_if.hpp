// SPDX-License-Identifier: MIT
// A refusal in one line. A header of its own, as nvcc cannot read {fmt}.
#pragma once
#include <fmt/format.h>

#include "memory/error.hpp"

namespace zero {
/// Throws Error if `wrong`. `with` must not read what finding that out sets, as errno may be set.
template <class... With>
void throw_if(bool wrong, ExitCode code, fmt::format_string<const With&...> why,
              const With&... with) {
  if (wrong) throw Error(code, fmt::format(why, with...));
}
}  // namespace zero
