// SPDX-License-Identifier: MIT
#include "memory/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

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

int exit_code_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return static_cast<int>(known->code);
  if (dynamic_cast<const std::bad_alloc*>(&error)) return static_cast<int>(ExitCode::resources);
  return 1;
}

}  // namespace zero
