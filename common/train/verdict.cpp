// SPDX-License-Identifier: MIT
#include "train/verdict.hpp"

#include <algorithm>
#include <cmath>

namespace zero {

Verdict decide(const Totals& totals, int micro_batches, double clip, float loss_scale) {
  const double norm = std::sqrt(totals.squares) / loss_scale;
  Verdict verdict;
  verdict.loss = static_cast<float>(totals.loss / micro_batches);
  verdict.grad_norm = static_cast<float>(norm);
  verdict.skipped = !std::isfinite(totals.squares);
  const double shrink = clip > 0 && norm > clip ? clip / norm : 1.0;
  verdict.grad_factor = static_cast<float>(shrink / loss_scale);
  return verdict;
}

LossScale::LossScale(const Options& options)
    : value_(1),
      dynamic_(options.dtype == Dtype::fp16 && options.loss_scale == 0) {
  if (options.dtype != Dtype::fp16) return;
  value_ = dynamic_ ? 0x1p16f : static_cast<float>(options.loss_scale);
}

void LossScale::update(bool skipped) {
  if (!dynamic_) return;
  good_steps_ = skipped ? 0 : good_steps_ + 1;
  if (skipped) value_ = std::max(value_ / 2, 1.0f);
  if (good_steps_ < 2000) return;
  value_ = std::min(value_ * 2, 0x1p24f);
  good_steps_ = 0;
}

}  // namespace zero
