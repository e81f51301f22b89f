// SPDX-License-Identifier: MIT
// What a step's two sums decide: the loss, the gradient norm, whether it is skipped, how much the
// gradients are scaled; and fp16's loss scale.
#pragma once
#include "compute/kernels.hpp"
#include "train/options.hpp"

namespace zero {

struct Verdict {
  float loss = 0;  // mean over all samples of the step
  float grad_norm = 0;  // of the mean gradient, unscaled, before clipping
  bool skipped = false;  // some gradient somewhere is not finite: nothing was updated
  float grad_factor = 1;  // what Adam multiplies stored gradients by: unscale and clip in one
};

/// totals: of all ranks. micro_batches: of all ranks together. clip: largest norm, 0 for none.
Verdict decide(const Totals& totals, int micro_batches, double clip, float loss_scale = 1);

/// fp16's loss scale: 2^16, halved at each skipped step (not below 1), doubled after 2000 good
/// ones in a row (not above 2^24); a fixed number when --loss-scale says so; 1 in the other dtypes.
class LossScale {
 public:
  explicit LossScale(const Options& options);
  float value() const { return value_; }
  void update(bool skipped);

 private:
  float value_;
  bool dynamic_;
  int good_steps_ = 0;
};

}  // namespace zero
