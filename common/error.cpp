// SPDX-License-Identifier: MIT
#include "error.hpp"

#include <fmt/format.h>

#include <new>

namespace zero {

void expect(bool holds, const char* what, std::source_location where) {
  if (holds) return;
  throw std::logic_error(
      fmt::format("{}: expected {} (line {})", where.function_name(), what, where.line()));
}

int exit_code_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return static_cast<int>(known->code);
  if (dynamic_cast<const std::bad_alloc*>(&error)) return static_cast<int>(ExitCode::resources);
  return 1;
}

}  // namespace zero
