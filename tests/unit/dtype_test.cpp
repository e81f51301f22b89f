// SPDX-License-Identifier: MIT
// The 16-bit types against their definition: the list of all the values there are, and "the nearest
// of the two neighbours, the even one of two equally near".
#include "memory/dtype.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "compute/generator.hpp"

namespace zero {
namespace {
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// An IEEE format with a sign bit, and no other code than its definition.
struct Format {
  int exponent_bits, mantissa_bits;

  int infinity_bits() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }

  /// Of a pattern without sign. Infinity gets the value that would come next: rounding takes it
  /// for a neighbour like any other.
  double value(int pattern) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = pattern >> mantissa_bits;
    const int fraction = pattern & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa_bits);
    return std::ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  /// By pattern: from 0 up to and including infinity's.
  std::vector<double> values() const {
    std::vector<double> all;
    for (int pattern = 0; pattern <= infinity_bits(); ++pattern) all.push_back(value(pattern));
    return all;
  }
};

template <class T> constexpr Format format_of{};
template <> constexpr Format format_of<Bf16>{8, 7};
template <> constexpr Format format_of<Fp16>{5, 10};

/// The pattern of the nearest value. Both distances are exact where they come near each other.
int nearest(const std::vector<double>& values, float x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(x));
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return sign | (static_cast<int>(values.size()) - 1);
  const auto upper = static_cast<int>(above - values.begin());
  const int lower = upper - 1;
  const double down = magnitude - values[lower];
  const double up = values[upper] - magnitude;
  const int even = upper % 2 == 0 ? upper : lower;
  return sign | (down == up ? even : down < up ? lower : upper);
}

bool is_nan(const Format& format, int pattern) {
  return (pattern & 0x7fff) > format.infinity_bits();
}

template <class T> bool rounds_right(const std::vector<double>& values, float x) {
  const int got = narrow<T>(x).bits;
  return std::isnan(x) ? is_nan(format_of<T>, got) : got == nearest(values, x);
}

/// Every tie between neighbours, and the fp32 numbers just below and above it.
template <class T> std::vector<float> ties() {
  std::vector<float> all;
  const auto values = format_of<T>.values();
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto tie = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, infinity)}) {
      all.push_back(x);
      all.push_back(-x);
    }
  }
  return all;
}

/// 2048 mantissas for each of the 512 signs and exponents, NaNs and infinities among them.
std::vector<float> all_exponents() {
  std::vector<float> all;
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (std::uint32_t i = 0; i < 2048; ++i) {
      const auto random = static_cast<std::uint32_t>(mix(top * 2048 + i));
      // The first few mantissas are the extreme ones.
      const std::uint32_t low = i < 4 ? i : i < 8 ? 0u - (i - 3) : random;
      all.push_back(std::bit_cast<float>(top << 23 | (low & 0x7fffffu)));
    }
  }
  return all;
}

template <class T> void check_rounding(const std::vector<float>& samples) {
  const auto values = format_of<T>.values();
  int wrong = 0;
  for (const float x : samples) {
    if (!rounds_right<T>(values, x) && wrong++ == 0) {
      MESSAGE(x, " becomes ", narrow<T>(x).bits, ", should become ", nearest(values, x));
    }
  }
  CHECK(wrong == 0);
}
}  // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern widens to its value and narrows back", T, Bf16, Fp16) {
  const Format format = format_of<T>;
  int nans = 0;
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const T x{static_cast<std::uint16_t>(pattern)};
    const float wide = widen(x);
    const int magnitude = pattern & 0x7fff;
    bool right = false;
    if (is_nan(format, pattern)) {
      ++nans;
      right = std::isnan(wide) && is_nan(format, narrow<T>(wide).bits);
    } else {
      const double value = magnitude == format.infinity_bits() ? HUGE_VAL : format.value(magnitude);
      right = std::abs(static_cast<double>(wide)) == value && narrow<T>(wide).bits == pattern &&
              std::signbit(wide) == (pattern >= 0x8000);
    }
    if (!right) FAIL_CHECK("pattern ", pattern, " widens to ", wide);
  }
  CHECK(nans == 2 * ((1 << format.mantissa_bits) - 1));
}

TEST_CASE_TEMPLATE("ties go to the even neighbour, all others to the nearer", T, Bf16, Fp16) {
  check_rounding<T>(ties<T>());
}

TEST_CASE_TEMPLATE("numbers of every exponent go to the nearest value", T, Bf16, Fp16) {
  check_rounding<T>(all_exponents());
}

TEST_CASE("fp16 rounds as the compiler's own half precision does") {
  int wrong = 0;
  for (const float x : all_exponents()) {
    const auto theirs = std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
    wrong += !std::isnan(x) && narrow<Fp16>(x).bits != theirs;
  }
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const auto half = static_cast<std::uint16_t>(pattern);
    const auto theirs = static_cast<float>(std::bit_cast<_Float16>(half));
    const float ours = widen(Fp16{half});
    wrong += !(std::isnan(ours) && std::isnan(theirs)) &&
             std::bit_cast<std::uint32_t>(ours) != std::bit_cast<std::uint32_t>(theirs);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 at its borders") {
  CHECK(narrow<Bf16>(1.0f).bits == 0x3f80);
  CHECK(narrow<Bf16>(-2.0f).bits == 0xc000);
  CHECK(narrow<Bf16>(1 + 0x1p-8f).bits == 0x3f80);  // a tie, down to even
  CHECK(narrow<Bf16>(1 + 0x3p-8f).bits == 0x3f82);  // a tie, up to even
  CHECK(narrow<Bf16>(0x1.fep127f).bits == 0x7f7f);  // the largest
  CHECK(narrow<Bf16>(0x1.fefffep127f).bits == 0x7f7f);
  CHECK(narrow<Bf16>(0x1.ffp127f).bits == 0x7f80);  // half a step above it: infinity
  CHECK(narrow<Bf16>(0x1p-133f).bits == 1);  // the smallest
  CHECK(narrow<Bf16>(0x1p-134f).bits == 0);
  CHECK(narrow<Bf16>(infinity).bits == 0x7f80);
  CHECK(narrow<Bf16>(-infinity).bits == 0xff80);
  CHECK(narrow<Bf16>(0.0f).bits == 0);
  CHECK(narrow<Bf16>(-0.0f).bits == 0x8000);
  CHECK(std::isnan(widen(narrow<Bf16>(nan))));
  // A NaN whose payload lies in the bits that are cut off must not become infinity.
  CHECK(std::isnan(widen(narrow<Bf16>(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("fp16 at its borders") {
  CHECK(narrow<Fp16>(1.0f).bits == 0x3c00);
  CHECK(narrow<Fp16>(-2.0f).bits == 0xc000);
  CHECK(narrow<Fp16>(65504.0f).bits == 0x7bff);  // the largest
  CHECK(narrow<Fp16>(65519.996f).bits == 0x7bff);
  CHECK(narrow<Fp16>(65520.0f).bits == 0x7c00);  // half a step above it: infinity
  CHECK(narrow<Fp16>(-65520.0f).bits == 0xfc00);
  CHECK(narrow<Fp16>(0x1p-14f).bits == 0x0400);  // the smallest normal number
  CHECK(narrow<Fp16>(0x1.ff8p-15f).bits == 0x03ff);
  CHECK(narrow<Fp16>(0x1.ffcp-15f).bits == 0x0400);  // a tie between the two
  CHECK(narrow<Fp16>(0x1p-24f).bits == 1);  // the smallest
  CHECK(narrow<Fp16>(0x1p-25f).bits == 0);  // a tie, down to even
  CHECK(narrow<Fp16>(0x1.000002p-25f).bits == 1);
  CHECK(narrow<Fp16>(0x3p-25f).bits == 2);  // a tie, up to even
  CHECK(narrow<Fp16>(infinity).bits == 0x7c00);
  CHECK(narrow<Fp16>(-infinity).bits == 0xfc00);
  CHECK(narrow<Fp16>(0.0f).bits == 0);
  CHECK(narrow<Fp16>(-0.0f).bits == 0x8000);
  CHECK(std::isnan(widen(narrow<Fp16>(nan))));
  CHECK(std::isnan(widen(narrow<Fp16>(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("a run-time dtype finds its C++ type, its size and its name") {
  const auto size_of = [](Dtype dtype) {
    return with_type(dtype, []<class T>(T) { return static_cast<std::int64_t>(sizeof(T)); });
  };
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    CHECK(size_of(dtype) == bytes_of(dtype));
  }
  const auto third = [](Dtype dtype) {
    return with_type(dtype, []<class T>(T) { return widen(narrow<T>(1.0f / 3)); });
  };
  CHECK(third(Dtype::fp32) == 1.0f / 3);
  CHECK(third(Dtype::bf16) == 0x1.56p-2f);
  CHECK(third(Dtype::fp16) == 0x1.554p-2f);
  CHECK(name_of(Dtype::fp32) == std::string("fp32"));
  CHECK(name_of(Dtype::bf16) == std::string("bf16"));
  CHECK(name_of(Dtype::fp16) == std::string("fp16"));
  CHECK_THROWS_AS(size_of(static_cast<Dtype>(3)), std::logic_error);
}
}  // namespace zero
