// SPDX-License-Identifier: MIT
// ZeRO-1: each rank keeps a shard of the optimizer state and updates only that.
#pragma once
#include "card.hpp"
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::zero1;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : compute_("compute", device),
        comm_(comm),
        model_(options, compute_),
        adam_(options, compute_),
        loss_scale_(options),
        sums_(device),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(device, layout, State::parameters, options.dtype),
        grads_(device, layout, State::gradients, options.dtype),
        master_(is_mixed(options.dtype), device, layout, State::master, Dtype::fp32),
        momentum_(device, layout, State::momentum, Dtype::fp32),
        variance_(device, layout, State::variance, Dtype::fp32) {
    for (int l = 0; l < model_.layers(); ++l) {
      model_.initialise(params_.layer(l));
      if (master_) model_.initialise(master_->own(l));  // the same values, unrounded
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
    const View weights = master_ ? master_->own(l) : params_.own(l);
    return {weights, momentum_.own(l), variance_.own(l), params_.own(l)};
  }
  void synchronise() { compute_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < model_.layers(); ++l) {
      model_.forward(l, params_.layer(l));
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    const bool last = micro + 1 == micro_batches_;
    for (int l = model_.layers(); l-- > 0;) {
      model_.backward(l, params_.layer(l), grads_.layer(l), write);
      if (last) comm_.reduce_scatter_mean(compute_, grads_.layer(l), grads_.own(l));
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    for (int l = 0; l < model_.layers(); ++l) {
      divide(compute_, grads_.own(l), micro_batches_);
      squared_norm(compute_, grads_.own(l), sums_);
    }
    const Verdict verdict = judge({
        .totals = comm_.await_totals(compute_, sums_),
        .losses = micro_batches_ * comm_.size,
        .clip = clip_,
        .loss_scale = loss_scale_.value(),
    });
    loss_scale_.update(verdict.skipped);  // the verdict has used this step's
    if (verdict.skipped) return verdict;
    adam_.begin(verdict.grad_factor);
    for (int l = 0; l < model_.layers(); ++l) {
      adam_.update(slice(l), grads_.own(l));
      comm_.all_gather(compute_, params_.own(l), params_.layer(l));
    }
    return verdict;
  }

  Stream compute_;
  Communicator& comm_;
  Mlp model_;
  Adam adam_;
  LossScale loss_scale_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Whole params_;
  Whole grads_;
  Optional<Sharded> master_;  // none: the parameters are their own
  Sharded momentum_, variance_;
};
}  // namespace zero
