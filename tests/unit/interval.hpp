// SPDX-License-Identifier: MIT
// Where a number of the program may lie. The program computes in fp32 and stores in the run's
// dtype.
#pragma once
#include <algorithm>
#include <cmath>

#include "tests/unit/checks.hpp"

namespace zero::test {
using std::exp, std::log, std::max;
constexpr double u = 0x1p-24;  // what one rounding to fp32 moves a number by at most, of itself

/// From low to high, numbers of fp32. An operator is one operation of the program, rounded once:
/// rounding keeps order, so the rounded ends enclose the rounded result. A constant is rounded too.
struct Interval {
  Interval(double x = 0) : Interval(x, x) {}
  Interval(double low, double high)
      : low(static_cast<float>(low)), high(static_cast<float>(high)) {}
  double magnitude() const { return std::max(std::abs(low), std::abs(high)); }

  double low, high;
};

inline Interval operator+(Interval a, Interval b) { return {a.low + b.low, a.high + b.high}; }
inline Interval operator-(Interval a, Interval b) { return {a.low - b.high, a.high - b.low}; }
inline std::pair<double, double> exact_product(Interval a, Interval b) {
  return std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
}
inline Interval operator*(Interval a, Interval b) {
  const auto [low, high] = exact_product(a, b);
  return {low, high};
}
/// b is positive.
inline Interval operator/(Interval a, Interval b) {
  return {a.low / (a.low < 0 ? b.low : b.high), a.high / (a.high < 0 ? b.high : b.low)};
}
inline Interval max(Interval a, Interval b) {
  return {std::max(a.low, b.low), std::max(a.high, b.high)};
}
/// The program's are off by 2^-36 of themselves before they are rounded, the library's, of doubles,
/// by a ten thousandth of that.
constexpr double series_error = 0x1.001p-36;
inline Interval exp(Interval x) {
  return {std::exp(x.low) * (1 - series_error), std::exp(x.high) * (1 + series_error)};
}
inline Interval log(Interval x) {  // x: 1 or more
  return {std::log(x.low) * (1 - series_error), std::log(x.high) * (1 + series_error)};
}

/// x as it is stored; a double stays what it is.
inline double stored(double x, Dtype) { return x; }
inline Interval stored(Interval x, Dtype dtype) {
  return {rounded(dtype, static_cast<float>(x.low)), rounded(dtype, static_cast<float>(x.high))};
}

/// y where x is positive, else 0.
inline double where_positive(double x, double y) { return x > 0 ? y : 0; }
inline Interval where_positive(Interval x, Interval y) {
  if (x.high <= 0) return 0;
  return x.low > 0 ? y : Interval(std::min(y.low, 0.0), std::max(y.high, 0.0));
}

/// A sum of products: in double as exact as needed, in fp32 formed in whatever order. There a
/// product passes through at most as many roundings as there are products, so the sum is off by at
/// most so many u of the products' magnitudes; 1.01 covers the squares of u, and double.
template <class Number> struct Sum {
  void add(Number a, Number b) { sum += a * b; }
  Number total(double) const { return sum; }
  Number sum = 0;
};
template <> struct Sum<Interval> {
  void add(Interval a, Interval b) {
    const auto [least, most] = exact_product(a, b);
    low += least;
    high += most;
    magnitude += std::max(std::abs(least), std::abs(most));
    ++terms;
  }
  /// roundoff: u, or more where additions are cut instead of rounded.
  Interval total(double roundoff) const {
    if (magnitude == 0) return 0;
    const double off = terms * (1.01 * roundoff * magnitude + 0x1p-126);  // may underflow
    return {low - off, high + off};
  }
  double low = 0, high = 0, magnitude = 0;
  int terms = 0;
};
}  // namespace zero::test
