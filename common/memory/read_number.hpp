// SPDX-License-Identifier: MIT
// Numbers in texts that others wrote: headers and names of files, the environment.
#pragma once
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace zero {
/// Returns the text as a number; empty if any part is no number, or it does not fit the type.
template <class Number> std::optional<Number> read_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && read_to == end ? std::optional(number) : std::nullopt;
}

/// Returns the environment variable as an int; empty if it is not set, or is no int.
inline std::optional<int> environment_number(const char* name) {
  const char* const text = std::getenv(name);
  return text ? read_number<int>(text) : std::nullopt;
}
}  // namespace zero
