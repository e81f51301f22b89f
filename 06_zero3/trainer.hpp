// SPDX-License-Identifier: MIT
// ZeRO-3: the parameters become a shard too. Each layer is gathered, used and released.
#pragma once
#include "common.hpp"
#include "layer_window.hpp"

namespace zero {

class Trainer {
 public:
  static constexpr Chapter chapter{.name = "06_zero3", .mixed_precision = true, .prefetch = true};

  /// Bytes on one of n ranks, when all parameters, gradients, optimizer state are p, g, k bytes.
  static double state_bytes(double p, double g, double k, double n) { return (p + g + k) / n; }
  /// In units of (n - 1) / n a parameter and step of a micro-batches: forward, backward, update.
  static Traffic elements_sent(double a) { return {a, 2 * a, 0}; }
  /// Borrowed beside the state: whole layers of parameters, of gradients.
  static WholeLayers whole_layers(int prefetch) { return {prefetch + 1, 2}; }

  Trainer(const Options& options, Communicator& comm)
      : compute_("compute", Stream::Mode::worker),
        comm_(comm),
        model_(options, compute_),
        layout_(model_.sizes(), comm.rank, comm.size),
        adam_(options, compute_),
        loss_scale_(options),
        clip_(options.clip),
        micro_batches_(options.accumulate),
        params_(Kind::parameters, options.dtype, layout_.shard()),
        grads_(Kind::gradients, options.dtype, layout_.shard()),
        master_(Kind::optimizer, Dtype::fp32, master_size(options.dtype, layout_.shard())),
        momentum_(Kind::optimizer, Dtype::fp32, layout_.shard()),
        variance_(Kind::optimizer, Dtype::fp32, layout_.shard()),
        window_(options, layout_, comm, compute_) {
    comm_.reserve(options.dtype, layout_.largest());
    for (int l = 0; l < layout_.layers(); ++l) {
      const AdamSlice own = state(l);
      model_.initialise(l, layout_.shard(params_, l), layout_.first_element(l), own.first);
      model_.initialise(l, own.weights, layout_.first_element(l), own.first);
    }
  }

  StepReport step(const Data& data, int step) {
    clear(compute_, sums_);
    window_.begin(params_);
    for (int micro = 0; micro < micro_batches_; ++micro) {
      forward(data(step, micro));
      backward(micro);
    }
    return update();
  }

  /// What this rank holds of layer l's fp32 state; to be read after synchronise().
  AdamSlice state(int l) const {
    const std::int64_t first = layout_.first_owned(l);
    const View weights = layout_.shard(master_.size() ? master_ : params_, l);
    return {first, weights, layout_.shard(momentum_, l), layout_.shard(variance_, l)};
  }
  const Layout& layout() const { return layout_; }
  void synchronise() { compute_.synchronise(); }

 private:
  void forward(const Batch& batch) {
    const PhaseScope phase(Phase::forward);
    model_.load(batch);
    for (int l = 0; l < layout_.layers(); ++l) {
      model_.forward(l, window_.get(l));
      window_.release(l);
    }
    model_.loss(loss_scale_.value(), sums_);
  }

  void backward(int micro) {
    const PhaseScope phase(Phase::backward);
    for (int l = layout_.layers(); l-- > 0;) {
      model_.backward(l, window_.get(l), window_.gradients(l), false);
      window_.release(l);
      window_.reduce_scatter(l, layout_.shard(grads_, l), micro > 0);
    }
  }

  StepReport update() {
    const PhaseScope phase(Phase::update);
    window_.finish();
    for (int l = 0; l < layout_.layers(); ++l) {
      const View grads = layout_.shard(grads_, l);
      divide(compute_, grads, micro_batches_);
      squared_norm(compute_, grads, sums_);
    }
    const Totals totals = window_.sum(sums_);
    const StepReport report =
        judge(totals, micro_batches_ * comm_.size, clip_, loss_scale_.value());
    loss_scale_.update(report.skipped);
    if (report.skipped) return report;
    adam_.begin(report.grad_factor);
    for (int l = 0; l < layout_.layers(); ++l) {
      const View params = layout_.shard(params_, l);
      const View grads = layout_.shard(grads_, l);
      adam_.update(state(l), grads, params);
    }
    return report;
  }

  Stream compute_;
  Communicator& comm_;
  Mlp model_;
  Layout layout_;
  Adam adam_;
  LossScale loss_scale_;
  Sums sums_;
  double clip_;
  int micro_batches_;
  Tensor params_;  // shard
  Tensor grads_;  // shard
  Tensor master_;  // shard
  Tensor momentum_;  // shard
  Tensor variance_;  // shard
  LayerWindow window_;
};

}  // namespace zero
