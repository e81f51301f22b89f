// SPDX-License-Identifier: MIT
#include "memory/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace zero {
void expect(bool holds, const char* what, std::source_location where) {
  if (holds) return;
  throw std::logic_error(
      fmt::format("{}: expected {} (line {})", where.function_name(), what, where.line()));
}

void flush_output() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  throw Error(ExitCode::resources,
              fmt::format("standard output cannot be written: {}", std::strerror(errno)));
}
}  // namespace zero
