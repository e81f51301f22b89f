// SPDX-License-Identifier: MIT
// Throws an Error with a formatted sentence. A separate header, because nvcc cannot compile {fmt}.
#pragma once
#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "memory/error.hpp"

namespace zero {
/// Throws Error. Call it behind an `if`, so that the sentence's values are computed only when it is
/// needed: otherwise they may not exist, and computing them may change errno.
template <class... With>
[[noreturn]] void throw_error(ExitCode code, fmt::format_string<const With&...> why,
                              const With&... with) {
  throw Error(code, fmt::format(why, with...));
}

/// Throws Error (resources) in the system's words for errno. of: the file or option.
[[noreturn]] inline void throw_errno(const std::string& of) {
  throw_error(ExitCode::resources, "{}: {}", of, std::strerror(errno));
}
}  // namespace zero
