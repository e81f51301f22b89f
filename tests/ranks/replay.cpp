// SPDX-License-Identifier: MIT
#include "tests/ranks/replay.hpp"

#include "tests/unit/elements.hpp"

namespace zero::test {

Replay::Replay(const Options& options, int ranks, Family family)
    : options_(options),
      ranks_(ranks),
      family_(family),
      model_(options, stream_),
      // cuBLAS may take another way where memory is aligned otherwise, so there as in the chapters.
      layout_(model_.sizes(), 0, 1, current_device() == Device::cpu ? 1 : 8),
      adam_(options, stream_),
      loss_scale_(options),
      params_(Kind::parameters, options.dtype, layout_.full_size()),
      grads_(Kind::gradients, options.dtype, layout_.full_size()),
      master_(Kind::optimizer, Dtype::fp32, layout_.full_size()),
      momentum_(Kind::optimizer, Dtype::fp32, layout_.full_size()),
      variance_(Kind::optimizer, Dtype::fp32, layout_.full_size()) {
  for (int l = 0; l < layout_.layers(); ++l) {
    model_.initialise(l, layout_.layer(params_, l), layout_.layer_start(l));
    model_.initialise(l, layout_.layer(master_, l), layout_.layer_start(l));
  }
}

float Replay::rounded(float x) const {
  return with_type(options_.dtype, [&]<class T>(T) { return widen(narrow<T>(x)); });
}

Replay::Values Replay::micro_batch(const Batch& batch, int rank) {
  model_.load(batch);
  for (int l = 0; l < layout_.layers(); ++l) model_.forward(l, layout_.layer(params_, l));
  model_.loss(loss_scale_.value(), sums_[rank]);
  for (int l = layout_.layers(); l-- > 0;) {
    model_.backward(l, layout_.layer(params_, l), layout_.layer(grads_, l), false);
  }
  return values_of(grads_);
}

Replay::Values Replay::values_of(const Tensor& tensor) {
  stream_.synchronise();
  Values all;
  for (int l = 0; l < layout_.layers(); ++l) {
    const View layer = layout_.layer(tensor, l);
    const Values some = values(layer.part(0, layer.used));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Replay::Values Replay::mean_over_ranks(const std::vector<Values>& of_rank) const {
  Values mean(of_rank[0].size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    float sum = of_rank[0][i];
    for (int r = 1; r < ranks_; ++r) sum += of_rank[r][i];
    mean[i] = rounded(sum / static_cast<float>(ranks_));
  }
  return mean;
}

void Replay::add(Values& to, const Values& what) const {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = rounded(to[i] + what[i]);
}

Replay::Values Replay::gradients_once_a_step(const std::vector<std::unique_ptr<Data>>& data,
                                             int step) {
  std::vector<Values> of_rank;
  for (int r = 0; r < ranks_; ++r) {
    Values sum = micro_batch((*data[r])(step, 0), r);
    for (int a = 1; a < options_.accumulate; ++a) add(sum, micro_batch((*data[r])(step, a), r));
    of_rank.push_back(std::move(sum));
  }
  return mean_over_ranks(of_rank);
}

Replay::Values Replay::gradients_every_micro_batch(const std::vector<std::unique_ptr<Data>>& data,
                                                   int step) {
  Values sum;
  for (int a = 0; a < options_.accumulate; ++a) {
    std::vector<Values> of_rank;
    for (int r = 0; r < ranks_; ++r) of_rank.push_back(micro_batch((*data[r])(step, a), r));
    const Values mean = mean_over_ranks(of_rank);
    if (a == 0) {
      sum = mean;
    } else {
      add(sum, mean);
    }
  }
  return sum;
}

Totals Replay::totals(const Values& grads) const {
  Totals totals;
  for (int r = 0; r < ranks_; ++r) {
    const Layout cut(model_.sizes(), r, ranks_);  // 01 is one rank: it owns everything
    double squares = 0;
    for (int l = 0; l < cut.layers(); ++l) {
      const std::int64_t size = cut.layer_size(l) / ranks_;
      const std::int64_t real = architecture(options_).size(l);
      double lanes[8] = {};
      for (std::int64_t i = 0; i < size && cut.shard_start(l) + i < real; ++i) {
        const double x = grads[cut.layer_start(l) + cut.shard_start(l) + i];
        lanes[i % 8] += x * x;
      }
      for (const double lane : lanes) squares += lane;
    }
    totals.squares += squares;
    totals.loss += sums_[r].loss;
  }
  return totals;
}

void Replay::update(const Values& grads, float factor) {
  for (int l = 0; l < layout_.layers(); ++l) {
    const View layer = layout_.layer(grads_, l);
    const float* from = grads.data() + layout_.layer_start(l);
    fill(layer.part(0, layer.used), [&](std::int64_t i) { return from[i]; });
  }
  adam_.begin(factor);
  adam_.update(
      {0, master_.view(), momentum_.view(), variance_.view()}, grads_.view(), params_.view());
}

Verdict Replay::step(const std::vector<std::unique_ptr<Data>>& data, int step) {
  sums_.clear();
  sums_.resize(ranks_);
  Values grads = family_ == Family::once_a_step ? gradients_once_a_step(data, step)
                                                : gradients_every_micro_batch(data, step);
  for (float& g : grads) g = rounded(g / static_cast<float>(options_.accumulate));
  for (Sums& sums : sums_) fetch(stream_, sums);
  const Verdict report =
      decide(totals(grads), options_.accumulate * ranks_, options_.clip, loss_scale_.value());
  loss_scale_.update(report.skipped);
  if (!report.skipped) update(grads, report.grad_factor);
  return report;
}

Outcome Replay::run(const MakeData& make) {
  std::vector<std::unique_ptr<Data>> data;
  for (int r = 0; r < ranks_; ++r) data.push_back(make(r, ranks_));
  Outcome outcome;
  for (int s = 0; s < options_.steps; ++s) outcome.reports.push_back(step(data, s));
  outcome.weights = values_of(master_);
  outcome.momentum = values_of(momentum_);
  outcome.variance = values_of(variance_);
  return outcome;
}

}  // namespace zero::test
