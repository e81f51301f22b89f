// SPDX-License-Identifier: MIT
// What a step needs besides model and Adam: phases, gradient arithmetic, sums, fp16's loss scale.
#pragma once
#include <cmath>

#include "compute/stream.hpp"
#include "memory/call_site.hpp"
#include "train/options.hpp"

namespace zero {
/// Sets the phase until the scope ends. If an observer throws in the destructor, the process ends.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase)
      : before_(here.phase),
        // Of nested phases observers hear load only. Others only say to which phase traffic counts.
        told_(phase != before_ && (before_ == Phase::setup || phase == Phase::load)) {
    here.phase = phase;
    if (!told_) return;
    here.during = phase;
    tell_host({name_of(phase)}, true);
  }
  ~PhaseScope() {
    if (told_) {
      tell_host({name_of(here.phase)}, false);
      here.during = before_;
    }
    here.phase = before_;
  }
  PhaseScope(const PhaseScope&) = delete;

 private:
  const Phase before_;
  const bool told_;
};

inline void clear(Stream& stream, Sums& sums, CallSite = {}) {
  stream.run({"clear"}, [&on = stream.kernels(), &sums] { on.clear(sums); });
}

/// Returns sums.totals (loss and squares). Blocks until all work on the stream is done.
inline Totals await_totals(Stream& stream, Sums& sums, CallSite = {}) {
  stream.run({"sums for the host"}, [&on = stream.kernels(), &sums] { on.fetch(sums); });
  stream.synchronise();
  return sums.totals;
}

/// Divides every element by divisor and rounds once. Multiplying by 1 / divisor would round twice.
inline void divide(Stream& stream, View values, int divisor, CallSite = {}) {
  if (divisor == 1) return;
  stream.run(work_on("divide", {values}, {values}),
             [=, &on = stream.kernels()] { on.divide(values, divisor); });
}

/// Adds the sum of the squared elements, formed in double, to sums.totals.squares.
inline void squared_norm(Stream& stream, ConstView values, Sums& sums, CallSite = {}) {
  stream.run(work_on("squared_norm", {values}, {}),
             [=, &on = stream.kernels(), &sums] { on.squared_norm(values, sums); });
}

struct StepResult {
  float loss = 0;  // mean over all samples of the step
  float grad_norm = 0;  // L2 norm of the mean gradient, without loss scale, before clipping
  bool skipped = false;  // a rank's gradient is not finite, so nothing was updated
  float grad_factor = 1;  // Adam multiplies gradients by it, which removes the loss scale and clips
  float loss_scale = 1;  // the factor that this step's stored gradients contain
};

/// The inputs of step_result(): the sums over all ranks, and how they were formed.
struct StepInputs {
  Totals totals;  // over all ranks; loss: the sum of the micro-batches' means
  int micro_batches = 1;  // of each rank
  int ranks = 1;
  float loss_scale = 1;
  double clip = 0;  // largest gradient norm; 0: no clipping
};

inline StepResult step_result(const StepInputs& step) {
  const double norm = std::sqrt(step.totals.squares) / step.loss_scale;
  const double shrink = step.clip > 0 && norm > step.clip ? step.clip / norm : 1.0;
  return {.loss = static_cast<float>(step.totals.loss / (step.micro_batches * step.ranks)),
          .grad_norm = static_cast<float>(norm),
          .skipped = !std::isfinite(step.totals.squares),
          .grad_factor = static_cast<float>(shrink / step.loss_scale),
          .loss_scale = step.loss_scale};
}

/// fp16's loss scale. The dynamic one begins at 2^16, or with options.begin in a resumed run. It is
/// halved after each skipped step (not below 1) and doubled after 2000 good steps in a row (not
/// above 2^24). With --loss-scale X > 0 it stays X; in other dtypes it is 1.
class LossScale {
 public:
  explicit LossScale(const Options& options)
      : dynamic_(options.dtype == Dtype::fp16 && options.loss_scale == 0) {
    if (options.dtype != Dtype::fp16) return;
    value_ = dynamic_ ? 0x1p16f : static_cast<float>(options.loss_scale);
    if (!dynamic_ || options.begin.loss_scale == 0) return;
    value_ = options.begin.loss_scale;
    good_steps_ = options.begin.good_steps;
  }

  float value() const { return value_; }
  int good_steps() const { return good_steps_; }
  void update(bool skipped) {
    if (!dynamic_) return;
    good_steps_ = skipped ? 0 : good_steps_ + 1;
    if (skipped) value_ = std::max(value_ / 2, 1.0f);
    if (good_steps_ < 2000) return;
    value_ = std::min(value_ * 2, 0x1p24f);
    good_steps_ = 0;
  }

 private:
  float value_ = 1;
  bool dynamic_;
  int good_steps_ = 0;
};
}  // namespace zero
