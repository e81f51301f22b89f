// SPDX-License-Identifier: MIT
// What the C++ benchmarks share: how long work takes, and the median.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace zero {
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

inline double milliseconds(auto work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}
}  // namespace zero
