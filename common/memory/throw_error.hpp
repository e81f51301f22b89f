// SPDX-License-Identifier: MIT
// An Error with its sentence in one call. A header of its own, as nvcc cannot read {fmt}.
#pragma once
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "memory/error.hpp"

namespace zero {
/// Throws Error. Stands behind an `if`, so that what the sentence says is computed only when it is
/// said: before, it may be invalid, and computing it could change errno.
template <class... With>
[[noreturn]] void throw_error(ExitCode code, fmt::format_string<const With&...> why,
                              const With&... with) {
  throw Error(code, fmt::format(why, with...));
}

/// Throws Error (resources) in the system's words for a call that it has just refused. of: a file.
[[noreturn]] inline void throw_errno(const std::string& of) {
  throw_error(ExitCode::resources, "{}: {}", of, std::strerror(errno));
}
}  // namespace zero
