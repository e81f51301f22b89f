// SPDX-License-Identifier: MIT
// What enumerators are called: in sentences, tables, logs and options.
#pragma once
#include <array>

namespace zero {
/// Of an enumeration that counts from 0 a name each, in its order; beside the enumeration.
template <class Enum> inline constexpr std::array<const char*, 0> names_of{};

template <class Enum> constexpr const char* name_of(Enum value) {
  return names_of<Enum>[static_cast<int>(value)];
}
}  // namespace zero
