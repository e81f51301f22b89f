// SPDX-License-Identifier: MIT
// One process: Adam with its two moments, micro-batches added up.
#pragma once
#include "card.hpp"
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::adam;

  Trainer(const Options& options, Device& device, const Layout& layout)
      : compute_("compute", device),
        model_(options, compute_),
        adam_(options, compute_),
        sums_(device),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(device, layout, State::parameters, Dtype::fp32),
        grads_(device, layout, State::gradients, Dtype::fp32),
        momentum_(device, layout, State::momentum, Dtype::fp32),
        variance_(device, layout, State::variance, Dtype::fp32) {
    for (int l = 0; l < model_.layers(); ++l) {
      model_.initialise(params_.layer(l));
    }
  }

  Verdict step(const Data& data, int number) {
    clear(compute_, sums_);
    for (int micro = 0; micro < micro_batches_; ++micro) {
      forward(data(number, micro));
      backward(micro);
    }
    return update();
  }

  /// What Adam updates of layer l on this rank.
  AdamSlice slice(int l) const {
    return {params_.layer(l), momentum_.layer(l), variance_.layer(l)};
  }
  void synchronise() { compute_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < model_.layers(); ++l) {
      model_.forward(l, params_.layer(l));
    }
    model_.loss(1, sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    for (int l = model_.layers(); l-- > 0;) {
      model_.backward(l, params_.layer(l), grads_.layer(l), write);
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    for (int l = 0; l < model_.layers(); ++l) {
      divide(compute_, grads_.layer(l), micro_batches_);
      squared_norm(compute_, grads_.layer(l), sums_);
    }
    const Verdict verdict = judge({
        .totals = await_totals(compute_, sums_),
        .losses = micro_batches_,
        .clip = clip_,
    });
    if (verdict.skipped) return verdict;
    adam_.begin(verdict.grad_factor);
    for (int l = 0; l < model_.layers(); ++l) {
      adam_.update(slice(l), grads_.layer(l));
    }
    return verdict;
  }

  Stream compute_;
  Mlp model_;
  Adam adam_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Whole params_;
  Whole grads_;
  Whole momentum_, variance_;
};
}  // namespace zero
