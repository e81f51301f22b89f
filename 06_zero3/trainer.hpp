// SPDX-License-Identifier: MIT
// ZeRO-3: the parameters become a shard too. Each layer is gathered, used and released.
#pragma once
#include "card.hpp"
#include "common.hpp"
#include "layer_window.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Card card = cards::zero3;

  Trainer(const Options& options, Device& device, const Layout& layout, Communicator& comm)
      : options_(options), device_(device), layout_(layout), comm_(comm) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(params_.own(l));
      if (master_) model_.initialise(master_->own(l));  // the same values, unrounded
      window_.gather_after(l, compute_.record());
    }
  }

  Verdict step(const Data& data, int number) {
    clear(compute_, sums_);
    for (int micro = 0; micro < options_.accumulate; ++micro) {
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
  void synchronise() { window_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, window_.gather(l));
      window_.release(l);
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    for (int l = layout_.layers(); l-- > 0;) {
      const View grads = window_.borrow_grads(l);
      model_.backward(l, window_.gather(l), grads, Write::over);
      window_.release(l);
      window_.reduce_scatter_mean(grads, grads_.own(l), write);
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    window_.wait_for_gradients();
    for (int l = 0; l < layout_.layers(); ++l) {
      divide(compute_, grads_.own(l), options_.accumulate);
      squared_norm(compute_, grads_.own(l), sums_);
    }
    const Verdict verdict = judge({.totals = comm_.await_totals(compute_, sums_),  // over all ranks
                                   .micro_batches = options_.accumulate,
                                   .ranks = comm_.size,
                                   .loss_scale = loss_scale_.value(),
                                   .clip = options_.clip});
    loss_scale_.update(verdict.skipped);  // the verdict has used this step's
    if (verdict.skipped) return verdict;
    adam_.begin(verdict.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      adam_.update(slice(l), grads_.own(l));
      window_.gather_after(l, compute_.record());
    }
    return verdict;
  }

  const Options& options_;
  Device& device_;
  const Layout& layout_;
  Communicator& comm_;
  Stream compute_{"compute", device_, Stream::Mode::worker};
  Mlp model_{options_, compute_};
  Adam adam_{options_, compute_};
  LossScale loss_scale_{options_};
  Sums sums_{device_};
  Sharded params_{device_, layout_, State::parameters, options_.dtype};
  Sharded grads_{device_, layout_, State::gradients, options_.dtype};
  Optional<Sharded> master_{is_mixed(options_.dtype), device_, layout_, State::master, Dtype::fp32};
  Sharded momentum_{device_, layout_, State::momentum, Dtype::fp32};
  Sharded variance_{device_, layout_, State::variance, Dtype::fp32};
  LayerWindow window_{card, options_, layout_, comm_, compute_, params_};
};
}  // namespace zero
