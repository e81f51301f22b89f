// SPDX-License-Identifier: MIT
// Compares the 16-bit types with their definition: every value, and that rounding takes the nearer
// neighbour, or the even one of two equally near. Compares exp and log with long double's. The
// generator of notes/generator.md is tested in tests/programs/digests_test.py.
#include <algorithm>
#include <cmath>

#include "compute/portable_math.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
constexpr float infinity = HUGE_VALF;

/// An IEEE format with a sign bit, written as its definition says.
struct Format {
  int exponent_bits, mantissa_bits;

  int infinity_bits() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(int pattern) const { return (pattern & 0x7fff) > infinity_bits(); }

  /// The value of a pattern without sign. Infinity gets the value that would follow the largest
  /// finite one, because rounding treats infinity as that one's neighbour.
  double value(int pattern) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = pattern >> mantissa_bits;
    const int fraction = pattern & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa_bits);
    return std::ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  /// The values of the patterns from 0's to infinity's. A value's index is its pattern.
  std::vector<double> values() const {
    std::vector<double> all;
    for (int pattern = 0; pattern <= infinity_bits(); ++pattern) all.push_back(value(pattern));
    return all;
  }
};

template <class T> constexpr Format format_of{};
template <> constexpr Format format_of<Bf16>{8, 7};
template <> constexpr Format format_of<Fp16>{5, 10};

/// The pattern of the value nearest to x; of two, the even. Nearly equal distances are exact.
int nearest(const std::vector<double>& values, float x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(x));
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return sign | (static_cast<int>(values.size()) - 1);
  const auto upper = static_cast<int>(above - values.begin());
  const int lower = upper - 1, even = upper % 2 == 0 ? upper : lower;
  const double down = magnitude - values[lower], up = values[upper] - magnitude;
  return sign | (down == up ? even : down < up ? lower : upper);
}

/// The largest error of ours(x) against exact(x), in fp32 units in the last place, over every
/// step-th fp32 number x from first to last, which have equal signs.
double most_off(float first, float last, std::uint32_t step, auto ours, auto exact) {
  long double most = 0;
  const auto end = std::bit_cast<std::uint32_t>(last);
  for (auto bits = std::bit_cast<std::uint32_t>(first); bits <= end; bits += step) {
    const auto x = std::bit_cast<float>(bits);
    const long double value = exact(x);
    const int exponent = std::max(std::ilogb(value), -126);
    most = std::max(most, std::ldexp(std::abs(ours(x) - value), 23 - exponent));
  }
  return static_cast<double>(most);
}

void check_exp_and_log(std::uint32_t step) {
  constexpr double derived = 0.5 + 0x1p-12;  // portable_math.hpp says why
  CHECK(most_off(-0x1p-26f, -104, step, portable_exp, expl) <= derived);
  CHECK(most_off(1, 0x1p16f, step, portable_log, logl) <= derived);
}
}  // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern widens to its value and narrows back", T, Bf16, Fp16) {
  const Format format = format_of<T>;
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const float wide = widen(T{static_cast<std::uint16_t>(pattern)});
    const int magnitude = pattern & 0x7fff;
    const double value = magnitude == format.infinity_bits() ? HUGE_VAL : format.value(magnitude);
    const int back = narrow<T>(wide).bits;
    INFO("pattern ", pattern);
    REQUIRE(std::isnan(wide) == format.is_nan(pattern));
    REQUIRE((format.is_nan(pattern) ? format.is_nan(back) : back == pattern));
    if (format.is_nan(pattern)) continue;
    REQUIRE(std::abs(wide) == value);
    REQUIRE(std::signbit(wide) == (pattern >= 0x8000));
  }
}

TEST_CASE_TEMPLATE("ties go to the even neighbour, all others to the nearer", T, Bf16, Fp16) {
  const std::vector<double> values = format_of<T>.values();
  std::vector<float> samples;
  // Every tie between neighbours, and the fp32 numbers just below and above it.
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto tie = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, infinity)}) {
      samples.insert(samples.end(), {x, -x});
    }
  }
  // 2048 mantissas for each of the 512 pairs of sign and exponent, NaNs and infinities too. The
  // first eight are the four smallest and the four largest mantissas, the others are random.
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (std::uint32_t i = 0; i < 2048; ++i) {
      const auto random = static_cast<std::uint32_t>(mix(top * 2048 + i));
      const std::uint32_t low = i < 4 ? i : i < 8 ? 0u - (i - 3) : random;
      samples.push_back(std::bit_cast<float>(top << 23 | (low & 0x7fffffu)));
    }
  }
  int wrong = 0;
  for (const float x : samples) {
    const int got = narrow<T>(x).bits, wanted = nearest(values, x);
    if (std::isnan(x) ? format_of<T>.is_nan(got) : got == wanted) continue;
    if (wrong++ == 0) MESSAGE(x, " becomes ", got, ", should become ", wanted);
  }
  CHECK(wrong == 0);
}

TEST_CASE("exp and log are off by at most 0.5 + 2^-12 units in the last place") {
  check_exp_and_log(997);
}

TEST_CASE("exp and log of every number" * doctest::skip()) { check_exp_and_log(1); }

TEST_CASE("exp and log at their borders") {
  for (const float x : {0.0f, -0.0f, -0x1p-26f, -0x1p-149f}) CHECK(portable_exp(x) == 1);
  CHECK(portable_exp(-103.97f) == 0x1p-149f);  // the smallest number above 0
  for (const float x : {-104.0f, -1e4f, -3e38f, -infinity}) CHECK(portable_exp(x) == 0);
  CHECK(portable_log(1) == 0);
  CHECK(portable_log(0x1p127f) == static_cast<float>(127 * std::numbers::ln2));
  CHECK(portable_log(infinity) == infinity);
  for (const auto of : {portable_exp, portable_log}) CHECK(std::isnan(of(NAN)));
}
}  // namespace zero::test
