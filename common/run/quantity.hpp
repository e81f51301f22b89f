// SPDX-License-Identifier: MIT
// Numbers with a unit, as a user types them.
#pragma once
#include <charconv>
#include <map>
#include <optional>
#include <string>

namespace zero {
using Units = std::map<std::string, double>;
inline const Units byte_units{{"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                              {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

/// A number and one of the units, as 7.5e9 or 80GB; nothing when the text is no such, or what it
/// means is not from least to most.
inline std::optional<double> quantity(const std::string& text, const Units& units, double least,
                                      double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  const auto unit = units.find(std::string(read.ptr, end));
  if (read.ec != std::errc() || unit == units.end()) return std::nullopt;
  value *= unit->second;
  if (!(least <= value && value <= most)) return std::nullopt;
  return value;
}
}  // namespace zero
