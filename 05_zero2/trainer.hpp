// SPDX-License-Identifier: MIT
// ZeRO-2: the gradients become a shard too. Each layer is reduced as soon as it is formed.
#pragma once
#include "common.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Chapter chapter{
      .name = "05_zero2",
      .mixed_precision = true,
      .state_bytes = [](double p, double g, double k, double n) { return p + (g + k) / n; },
      .elements_sent = [](double a) { return Traffic(0, a, 1); },
      .whole_layers = [](int) { return WholeLayers(0, 1); },
  };

  Trainer(const Options& options, Device device, const Layout& layout, Communicator& comm)
      : compute_("compute", device),
        comm_(comm),
        layout_(layout),
        model_(options, compute_),
        adam_(options, compute_),
        loss_scale_(options),
        sums_(device),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(device, Kind::parameters, options.dtype, layout.full_size()),
        grads_(device, Kind::gradients, options.dtype, layout.shard_size()),
        layer_grads_(device, Kind::gradients, options.dtype, layout.largest_layer()),
        master_(
            device, Kind::optimizer, Dtype::fp32, is_mixed(options.dtype) * layout.shard_size()),
        momentum_(device, Kind::optimizer, Dtype::fp32, layout.shard_size()),
        variance_(device, Kind::optimizer, Dtype::fp32, layout.shard_size()) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(l, layout_.layer(params_, l));
      model_.initialise(l, state(l).weights);  // the same values, before they were rounded
    }
  }

  Verdict step(const Data& data, int step) {
    clear(compute_, sums_);
    for (int micro = 0; micro < micro_batches_; ++micro) {
      forward(data(step, micro));
      backward(micro);
    }
    return update();
  }

  /// This rank's part of layer l: what Adam keeps in fp32, the parameters, the gradients.
  AdamSlice state(int l) const {
    const View weights = is_mixed(params_.dtype()) ? layout_.shard(master_, l) : params(l);
    return {weights, layout_.shard(momentum_, l), layout_.shard(variance_, l)};
  }
  View params(int l) const { return layout_.shard_of(layout_.layer(params_, l)); }
  View grads(int l) const { return layout_.shard(grads_, l); }
  void synchronise() { compute_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, layout_.layer(params_, l));
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    for (int l = layout_.layers(); l-- > 0;) {
      const Booking booking = layer_grads_.book();
      const View whole = layout_.layer_in(booking.view(), l);
      model_.backward(l, layout_.layer(params_, l), whole, Write::over);
      comm_.reduce_scatter_mean(compute_, whole, grads(l), write);
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    for (int l = 0; l < layout_.layers(); ++l) {
      divide(compute_, grads(l), micro_batches_);
      squared_norm(compute_, grads(l), sums_);
    }
    const Totals totals = comm_.sum(compute_, sums_);
    const Verdict verdict = decide(totals, micro_batches_ * comm_.size, clip_, loss_scale_.value());
    loss_scale_.update(verdict.skipped);  // the verdict has used this step's
    if (verdict.skipped) return verdict;
    adam_.begin(verdict.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      adam_.update(state(l), grads(l), CastTo{params(l)});
      comm_.all_gather(compute_, layout_.layer(params_, l));
    }
    return verdict;
  }

  Stream compute_;
  Communicator& comm_;
  const Layout& layout_;
  Mlp model_;
  Adam adam_;
  LossScale loss_scale_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Tensor params_;  // full
  Tensor grads_;  // shard
  Scratch layer_grads_;  // one layer, within backward
  Tensor master_;  // shard; none in fp32
  Tensor momentum_, variance_;  // shard
};
}  // namespace zero
