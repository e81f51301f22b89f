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

LossScale dynamic_scale() {
  Options options;
  options.dtype = Dtype::fp16;
  return LossScale(options);
}

void update(LossScale& scale, bool skipped, int times) {
  for (int i = 0; i < times; ++i) scale.update(skipped);
}

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
  const Verdict report = decide({0, 25.0 * 64 * 64}, 1, 2.5, 64);
  CHECK(report.grad_norm == 5.0f);
  CHECK(report.grad_factor == 0.5f / 64);
  CHECK(decide({0, 0}, 1, 1).grad_factor == 1.0f);
}

TEST_CASE("the factor is formed in double and rounded once") {
  int differs_from_fp32 = 0;
  for (int squares = 2; squares < 1000; ++squares) {
    const auto norm = std::sqrt(static_cast<double>(squares));
    const Verdict report = decide({0, static_cast<double>(squares)}, 1, 0.3, 3);
    CHECK(report.grad_norm == static_cast<float>(norm / 3));
    if (norm / 3 <= 0.3) continue;
    CHECK(report.grad_factor == static_cast<float>(0.3 / (norm / 3) / 3));
    const float in_fp32 = 0.3f / (static_cast<float>(norm) / 3.0f) / 3.0f;
    differs_from_fp32 += report.grad_factor != in_fp32;
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
  LossScale scale = dynamic_scale();
  CHECK(scale.value() == 65536);
  scale.update(true);
  CHECK(scale.value() == 32768);
  update(scale, true, 14);
  CHECK(scale.value() == 2);
  scale.update(true);
  CHECK(scale.value() == 1);
  scale.update(true);
  CHECK(scale.value() == 1);
}

TEST_CASE("the dynamic loss scale doubles after 2000 good steps in a row") {
  LossScale scale = dynamic_scale();
  update(scale, false, 1999);
  CHECK(scale.value() == 65536);
  scale.update(false);
  CHECK(scale.value() == 131072);
  // Counted anew after a doubling, and after a skipped step.
  update(scale, false, 1999);
  CHECK(scale.value() == 131072);
  scale.update(true);
  CHECK(scale.value() == 65536);
  update(scale, false, 1999);
  CHECK(scale.value() == 65536);
  scale.update(false);
  CHECK(scale.value() == 131072);
}

TEST_CASE("the dynamic loss scale stops at 2^24") {
  LossScale scale = dynamic_scale();
  update(scale, false, 8 * 2000);
  CHECK(scale.value() == 0x1p24f);
  update(scale, false, 2 * 2000);
  CHECK(scale.value() == 0x1p24f);
}

TEST_CASE("a fixed loss scale stays") {
  Options options;
  options.dtype = Dtype::fp16;
  options.loss_scale = 1000;
  LossScale scale(options);
  CHECK(scale.value() == 1000);
  scale.update(true);
  CHECK(scale.value() == 1000);
  update(scale, false, 2000);
  CHECK(scale.value() == 1000);
}

TEST_CASE("fp32 and bf16 have no loss scale") {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Options options;
    options.dtype = dtype;
    LossScale scale(options);
    CHECK(scale.value() == 1);
    update(scale, false, 2000);
    CHECK(scale.value() == 1);
    scale.update(true);
    CHECK(scale.value() == 1);
  }
}

}  // namespace zero
