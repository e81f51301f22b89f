// SPDX-License-Identifier: MIT
// One process: Adam with its two moments, micro-batches added up.
#pragma once
#include "common.hpp"

namespace zero {

class Trainer {
 public:
  static constexpr Chapter chapter{.name = "01_adam", .ranks = false};

  /// Bytes on one of n ranks, when all parameters, gradients, optimizer state are p, g, k bytes.
  static double state_bytes(double p, double g, double k, double) { return p + g + k; }
  /// In units of (n - 1) / n a parameter and step of a micro-batches: forward, backward, update.
  static Traffic elements_sent(double) { return {0, 0, 0}; }
  /// Borrowed beside the state: whole layers of parameters, of gradients.
  static WholeLayers whole_layers(int) { return {0, 0}; }

  explicit Trainer(const Options& options)
      : compute_("compute"),
        model_(options, compute_),
        layout_(model_.sizes(), 0, 1),
        adam_(options, compute_),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(Kind::parameters, Dtype::fp32, layout_.full()),
        grads_(Kind::gradients, Dtype::fp32, layout_.full()),
        momentum_(Kind::optimizer, Dtype::fp32, layout_.full()),
        variance_(Kind::optimizer, Dtype::fp32, layout_.full()) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(l, layout_.layer(params_, l), layout_.first_element(l));
    }
  }

  StepReport step(const Data& data, int step) {
    clear(compute_, sums_);
    for (int micro = 0; micro < micro_batches_; ++micro) {
      forward(data(step, micro));
      backward(micro);
    }
    return update();
  }

  /// What this rank holds of layer l's fp32 state; to be read after synchronise().
  AdamSlice state(int l) const {
    const View weights = layout_.layer(params_, l);
    return {0, weights, layout_.layer(momentum_, l), layout_.layer(variance_, l)};
  }
  const Layout& layout() const { return layout_; }
  void synchronise() { compute_.synchronise(); }

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, layout_.layer(params_, l));
    }
    model_.loss(1, sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    for (int l = layout_.layers(); l-- > 0;) {
      const View grads = layout_.layer(grads_, l);
      model_.backward(l, layout_.layer(params_, l), grads, micro > 0);
    }
  }

  StepReport update() {
    const PhaseScope phase(Phase::update);
    for (int l = 0; l < layout_.layers(); ++l) {
      const View grads = layout_.layer(grads_, l);
      divide(compute_, grads, micro_batches_);
      squared_norm(compute_, grads, sums_);
    }
    fetch(compute_, sums_);
    const StepReport report = judge({sums_.loss, sums_.squares}, micro_batches_, clip_);
    if (report.skipped) return report;
    adam_.begin(report.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      const View params = layout_.layer(params_, l);
      const View grads = layout_.layer(grads_, l);
      adam_.update(state(l), grads, params);
    }
    return report;
  }

  Stream compute_;
  Mlp model_;
  Layout layout_;
  Adam adam_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Tensor params_;  // full
  Tensor grads_;  // full
  Tensor momentum_;  // full
  Tensor variance_;  // full
};

}  // namespace zero
