// SPDX-License-Identifier: MIT
// ZeRO-3: the parameters become a shard too. Each layer is gathered, used and freed.
#pragma once
#include "common.hpp"
#include "layer_window.hpp"

namespace zero {
class Trainer {
 public:
  static constexpr Chapter chapter{
      .name = "06_zero3",
      .mixed_precision = true,
      .state_bytes = [](double p, double g, double k, double n) { return (p + g + k) / n; },
      .elements_sent = [](double a) { return Traffic(a, 2 * a, 0); },
      .whole_layers = [](int prefetch) { return WholeLayers(prefetch + 1, 2); },
  };

  Trainer(const Options& options, Device device, const Layout& layout, Communicator& comm)
      : compute_("compute", device, Stream::Mode::worker),
        comm_(comm),
        layout_(layout),
        model_(options, compute_),
        adam_(options, compute_),
        loss_scale_(options),
        sums_(device),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(device, Kind::parameters, options.dtype, layout.shard_size()),
        grads_(device, Kind::gradients, options.dtype, layout.shard_size()),
        master_(
            device, Kind::optimizer, Dtype::fp32, is_mixed(options.dtype) * layout.shard_size()),
        momentum_(device, Kind::optimizer, Dtype::fp32, layout.shard_size()),
        variance_(device, Kind::optimizer, Dtype::fp32, layout.shard_size()),
        window_(options, layout, comm, compute_, params_) {
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.initialise(l, layout_.shard(params_, l));
      model_.initialise(l, state(l).weights);  // the same values, before they were rounded
      window_.updated(l, compute_.record());
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
  View params(int l) const { return layout_.shard(params_, l); }
  View grads(int l) const { return layout_.shard(grads_, l); }
  void synchronise() { compute_.synchronise(); }  // before any of it is read

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, window_.gather(l));
      window_.free(l);
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    const Write write = micro == 0 ? Write::over : Write::add;
    for (int l = layout_.layers(); l-- > 0;) {
      model_.backward(l, window_.gather(l), window_.gradients(l), Write::over);
      window_.free(l);
      window_.reduce_scatter_mean(l, grads(l), write);
    }
  }

  Verdict update() {
    const PhaseScope phase(Phase::update);
    window_.finish();
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
      window_.updated(l, compute_.record());
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
  Tensor params_;  // shard
  Tensor grads_;  // shard
  Tensor master_;  // shard; none in fp32
  Tensor momentum_, variance_;  // shard
  LayerWindow window_;  // a few layers, within a step
};
}  // namespace zero
