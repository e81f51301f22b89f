// SPDX-License-Identifier: MIT
// exp and log of fp32 with the same bits everywhere, which C libraries do not give: computed in
// double by operations that IEEE 754 fixes (no build contracts them to an FMA), then rounded once.
#pragma once
#include <limits>
#include <numbers>

#include "memory/dtype.hpp"

namespace zero {
/// e^x for -104 <= x <= 0, in double, to fp32's accuracy and a few bits. No branch, so that a loop
/// becomes vectors. x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor series to r^9 / 9!. The
/// terms that are left out are at most sqrt(2) |r|^10 / 10! < 2^-36 of e^r.
HOST_DEVICE inline double portable_exp_wide(double x) {
  constexpr double round = 0x1.8p52;  // y + round has y, rounded to an integer, in its low bits
  const double shifted = x * std::numbers::log2e + round;
  const double r = x - (shifted - round) * std::numbers::ln2;
  double power = 1 / 362880.0;
  for (const double factorial : {40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0}) {
    power = power * r + 1 / factorial;
  }
  // The low bits, n + 1023, become the exponent; the shift drops all higher bits.
  const std::uint64_t two_to_n = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;
  return power * std::bit_cast<double>(two_to_n);
}

/// e^x for x <= 0; NaN stays NaN. In fp32 off by at most 0.5 + 2^-12 units in the last place.
HOST_DEVICE inline float portable_exp(float x) {
  return static_cast<float>(portable_exp_wide(x < -104.0f ? -104.0f : x));  // e^-104 rounds to 0
}

/// 1 / (1 + e^-x).
HOST_DEVICE inline float portable_sigmoid(float x) {
  const float power = portable_exp(x < 0 ? x : -x);
  return (x < 0 ? power : 1.0f) / (1 + power);
}

/// Cosine and sine of an angle of 0 to 1 radians, in double, by their Taylor series.
struct CosSin {
  double cosine = 1, sine = 1;
};
inline CosSin portable_cos_sin(double angle) {
  CosSin turn;
  for (int n = 20; n > 0; n -= 2) {
    turn.cosine = 1 - turn.cosine * angle * angle / (n * (n - 1));
    turn.sine = 1 - turn.sine * angle * angle / (n * (n + 1));
  }
  turn.sine *= angle;
  return turn;
}

/// log(x) for x >= 1; infinity and NaN stay. x = 2^n m with m in [1, 2). log m =
/// 2 (s + s^3 / 3 + ... + s^21 / 21 + ...) with s = (m - 1) / (m + 1) < 1/3; terms behind s^21 / 21
/// are at most 9/8 s^22 / 23 < 2^-39 of log m: as exact as portable_exp().
HOST_DEVICE inline float portable_log(float x) {
  const auto bits = std::bit_cast<std::uint64_t>(double{x});
  const double n = static_cast<int>(bits >> 52) - 1023;
  const double m = std::bit_cast<double>((bits & ~(~0ull << 52)) | 1023ull << 52);
  const double s = (m - 1) / (m + 1);
  double series = 0;
  for (int odd = 21; odd > 0; odd -= 2) series = series * (s * s) + 1.0 / odd;
  const double log = n * std::numbers::ln2 + 2 * s * series;
  return x < std::numeric_limits<float>::infinity() ? static_cast<float>(log) : x;
}
}  // namespace zero
