// SPDX-License-Identifier: MIT
// Enumerators' names, for sentences, tables, logs and options; and arrays indexed by enumerators.
#pragma once
#include <array>

namespace zero {
/// The names of enumerators, which count from 0. An enumeration specialises it to have names.
template <class Enum> inline constexpr std::array<const char*, 0> names_of{};

template <class Enum> constexpr const char* name_of(Enum value) {
  return names_of<Enum>[static_cast<int>(value)];
}

/// An array with one T for each enumerator, in their order.
template <class Enum, class T> struct By {
  static_assert(names_of<Enum>.size() > 0, "an enumeration with names");
  using Of = Enum;
  constexpr T& operator[](Enum of) { return all[static_cast<int>(of)]; }
  constexpr const T& operator[](Enum of) const { return all[static_cast<int>(of)]; }
  constexpr auto begin() const { return all.begin(); }
  constexpr auto end() const { return all.end(); }
  bool operator==(const By&) const = default;
  std::array<T, names_of<Enum>.size()> all;
};

template <class Enum>
inline constexpr By<Enum, Enum> every = [] {  // all enumerators, in their order
  By<Enum, Enum> all{};
  int number = 0;
  for (Enum& each : all.all) each = static_cast<Enum>(number++);
  return all;
}();
}  // namespace zero
