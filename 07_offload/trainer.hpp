// SPDX-License-Identifier: MIT
// Offload: what a step needs once, at its end, lies in the host's memory, where Adam runs.
#pragma once
#include "card.hpp"
#include "common.hpp"
#include "host.hpp"
#include "layer_window.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::offload;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : compute_("compute", device, Stream::Mode::worker),
        comm_(comm),
        host_(options, layout, compute_),
        model_(options, compute_),
        adam_(options, host_.compute()),
        loss_scale_(options),
        sums_(device),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(device, layout, State::parameters, options.dtype),
        grads_(device, layout, State::gradients, options.dtype),
        master_(true, device.host(), layout, State::master, Dtype::fp32),
        momentum_(device.host(), layout, State::momentum, Dtype::fp32),
        variance_(device.host(), layout, State::variance, Dtype::fp32),
        window_(card, options, layout, comm, compute_, params_) {
    for (int l = 0; l < model_.layers(); ++l) {
      model_.initialise(params_.own(l));
      if (master_) model_.initialise(master_->own(l));  // the same values, unrounded
      window_.gather_after(l, compute_.record());
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
    return {weights, momentum_.own(l), variance_.own(l), host_.staged(l)};
  }
  void synchronise() { compute_.synchronise(), host_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < model_.layers(); ++l) {
      model_.forward(l, window_.gather(l));
      window_.release(l);
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    const bool last = micro + 1 == micro_batches_;
    for (int l = model_.layers(); l-- > 0;) {
      const View grads = window_.borrow_grads(l);
      model_.backward(l, window_.gather(l), grads, Write::over);
      window_.release(l);
      const Event reduced = window_.reduce_scatter_mean(grads, grads_.own(l), write);
      if (last) host_.divide_and_bring_down(grads_.own(l), micro_batches_, reduced);
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    window_.wait_for_gradients();
    host_.wait_for_gradients();
    for (int l = 0; l < model_.layers(); ++l) {
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
      adam_.update(slice(l), host_.staged(l));
      window_.gather_after(l, host_.bring_up(params_.own(l)));
    }
    return verdict;
  }

  Stream compute_;
  Communicator& comm_;
  Host host_;
  Mlp model_;
  Adam adam_;
  LossScale loss_scale_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Sharded params_;
  Sharded grads_;
  Optional<Sharded> master_;  // none: the parameters are their own
  Sharded momentum_, variance_;
  LayerWindow window_;  // lends a few whole layers, within a step
};
}  // namespace zero
