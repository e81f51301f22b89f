// SPDX-License-Identifier: MIT
// What the benchmarks share: options, times, medians.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "memory/throw_if.hpp"
#include "run/quantity.hpp"

namespace zero {
/// By name, with the values that they have when they are not given.
using Arguments = std::map<std::string, std::string>;

/// With the values that are given: "--name value"; what is "no" becomes "yes" by "--name" alone.
/// Throws Error (usage) for a name that is not there, and where a value is missing.
inline Arguments read(int argc, char** argv, Arguments arguments) {
  for (int i = 1; i < argc; ++i) {
    const auto found = arguments.find(argv[i]);
    std::string names;
    for (const auto& [name, value] : arguments) names += " " + name;
    throw_if(found == arguments.end(), ExitCode::usage, "{}: there is only{}", argv[i], names);
    const bool alone = found->second == "no";
    throw_if(!alone && i + 1 == argc, ExitCode::usage, "{}: a value is missing", argv[i]);
    found->second = alone ? "yes" : argv[++i];
  }
  return arguments;
}

/// A whole number that such a one divides. Throws Error (usage).
inline std::int64_t multiple_of(std::int64_t of, const Arguments& arguments,
                                const std::string& name) {
  const auto least = static_cast<double>(of);
  const auto value = quantity(arguments.at(name), {{"", 1}}, least, 1e12);
  throw_if(!value || std::fmod(*value, least) != 0, ExitCode::usage, "{} {}: no multiple of {}",
           name, arguments.at(name), of);
  return static_cast<std::int64_t>(*value);
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// How long that takes.
inline double milliseconds(auto work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}
}  // namespace zero
