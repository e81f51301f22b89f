// SPDX-License-Identifier: MIT
// A step's verdict: loss, norm, factor, skip; and the life of the loss scale.
#include "train/verdict.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace zero {
namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The loss scale of that dtype; asked: --loss-scale, 0 for the dynamic one.
LossScale scale_of(Dtype dtype, double asked = 0) {
  return LossScale({.dtype = dtype, .loss_scale = asked});
}

/// The scale after so many further steps.
float after(LossScale& scale, bool skipped, int steps = 1) {
  for (int i = 0; i < steps; ++i) scale.update(skipped);
  return scale.value();
}

constexpr bool good = false, bad = true;
}  // namespace

TEST_CASE("the loss is the mean over the micro-batches of all ranks") {
  CHECK(decide({6, 1}, 4, 0).loss == 1.5f);
  CHECK(decide({6, 1}, 1, 0).loss == 6.0f);
  // Divided in double and rounded to fp32 once.
  CHECK(decide({1, 1}, 3, 0).loss == static_cast<float>(1.0 / 3));
}

TEST_CASE("the norm is of the unscaled gradients") {
  CHECK(decide({0, 25}, 1, 0).grad_norm == 5.0f);
  CHECK(decide({0, 25.0 * 1024 * 1024}, 1, 0, 1024).grad_norm == 5.0f);
  CHECK(decide({0, 0}, 1, 1).grad_norm == 0.0f);
}

TEST_CASE("without clipping the factor takes the loss scale out, and nothing else") {
  CHECK(decide({0, 1e12}, 1, 0).grad_factor == 1.0f);
  CHECK(decide({0, 1e12}, 1, 0, 1024).grad_factor == 1.0f / 1024);
  CHECK(decide({0, 1e12}, 1, 0, 3).grad_factor == static_cast<float>(1.0 / 3));
}

TEST_CASE("a norm above the clip is brought down to it") {
  CHECK(decide({0, 25}, 1, 5).grad_factor == 1.0f);  // at the clip: nothing to do
  CHECK(decide({0, 25}, 1, 6).grad_factor == 1.0f);
  CHECK(decide({0, 25}, 1, 1).grad_factor == static_cast<float>(1.0 / 5));
  CHECK(decide({0, 25}, 1, 2.5).grad_norm == 5.0f);  // logged before clipping
  // With a loss scale the norm that counts is the unscaled one, and one factor does both.
  const Verdict verdict = decide({0, 25.0 * 64 * 64}, 1, 2.5, 64);
  CHECK(verdict.grad_norm == 5.0f);
  CHECK(verdict.grad_factor == 0.5f / 64);
  CHECK(decide({0, 0}, 1, 1).grad_factor == 1.0f);
}

TEST_CASE("the factor is formed in double and rounded once") {
  int differs_from_fp32 = 0;
  for (int squares = 2; squares < 1000; ++squares) {
    const auto norm = std::sqrt(static_cast<double>(squares));
    const Verdict verdict = decide({0, static_cast<double>(squares)}, 1, 0.3, 3);
    CHECK(verdict.grad_norm == static_cast<float>(norm / 3));
    if (norm / 3 <= 0.3) continue;
    CHECK(verdict.grad_factor == static_cast<float>(0.3 / (norm / 3) / 3));
    const float in_fp32 = 0.3f / (static_cast<float>(norm) / 3.0f) / 3.0f;
    differs_from_fp32 += verdict.grad_factor != in_fp32;
  }
  CHECK(differs_from_fp32 > 0);  // else the loop above would prove nothing
}

TEST_CASE("a step is skipped when its sum of squares is not finite") {
  CHECK(!decide({1, 1}, 1, 0).skipped);
  CHECK(!decide({1, 1e300}, 1, 0).skipped);
  CHECK(decide({1, infinity}, 1, 0).skipped);
  CHECK(decide({1, nan}, 1, 0).skipped);
  CHECK(decide({1, nan}, 1, 1, 1024).skipped);
  // An infinite loss with finite gradients is the loss's own affair.
  CHECK(!decide({infinity, 1}, 1, 0).skipped);
}

TEST_CASE("the dynamic loss scale starts at 2^16 and halves at each skipped step, down to 1") {
  LossScale scale = scale_of(Dtype::fp16);
  CHECK(scale.value() == 65536);
  for (const float halved : {32768, 16384, 8192}) CHECK(after(scale, bad) == halved);
  CHECK(after(scale, bad, 12) == 2);
  CHECK(after(scale, bad) == 1);
  CHECK(after(scale, bad) == 1);
}

TEST_CASE("the dynamic loss scale doubles after 2000 good steps in a row, up to 2^24") {
  LossScale scale = scale_of(Dtype::fp16);
  CHECK(after(scale, good, 1999) == 65536);
  CHECK(after(scale, good) == 131072);
  // Counted anew after a doubling, and after a skipped step.
  CHECK(after(scale, good, 1999) == 131072);
  CHECK(after(scale, bad) == 65536);
  CHECK(after(scale, good, 1999) == 65536);
  CHECK(after(scale, good) == 131072);
  CHECK(after(scale, good, 7 * 2000) == 0x1p24f);
  CHECK(after(scale, good, 2 * 2000) == 0x1p24f);
}

TEST_CASE("a fixed loss scale stays, and fp32 and bf16 have none") {
  struct Fixed {
    Dtype dtype;
    double asked;
    float value;
  };
  for (const Fixed& fixed : {Fixed{Dtype::fp16, 1000, 1000},
                             {Dtype::fp32, 0, 1},
                             {Dtype::bf16, 0, 1},
                             {Dtype::bf16, 1000, 1}}) {
    LossScale scale = scale_of(fixed.dtype, fixed.asked);
    CHECK(scale.value() == fixed.value);
    CHECK(after(scale, good, 2000) == fixed.value);
    CHECK(after(scale, bad) == fixed.value);
  }
}
}  // namespace zero
