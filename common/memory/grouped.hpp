// SPDX-License-Identifier: MIT
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace zero {
/// 1234567 as "1 234 567".
inline std::string grouped(std::int64_t number) {
  std::string text = fmt::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > (number < 0); at -= 3) {
    text.insert(at, 1, ' ');
  }
  return text;
}
}  // namespace zero
