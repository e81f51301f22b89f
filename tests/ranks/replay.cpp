// SPDX-License-Identifier: MIT
#include "tests/ranks/replay.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "tests/unit/elements.hpp"

namespace zero::test {
Replay::Replay(const Options& options, Family family)
    : options_(options),
      ranks_(ranks().size),
      family_(family),
      stream_("replay", device()),
      model_(options, stream_),
      // cuBLAS may take another way where memory is aligned otherwise, so there as in the chapters.
      layout_(architecture(options).sizes(), 0, 1, device() == Device::cpu ? 1 : 8),
      adam_(options, stream_),
      loss_scale_(options),
      params_(device(), Kind::parameters, options.dtype, layout_.full_size()),
      grads_(device(), Kind::gradients, options.dtype, layout_.full_size()),
      master_(device(), Kind::optimizer, Dtype::fp32, layout_.full_size()),
      momentum_(device(), Kind::optimizer, Dtype::fp32, layout_.full_size()),
      variance_(device(), Kind::optimizer, Dtype::fp32, layout_.full_size()) {
  for (int l = 0; l < layout_.layers(); ++l) {
    model_.initialise(l, layout_.layer(params_, l));
    model_.initialise(l, layout_.layer(master_, l));
  }
  for (int r = 0; r < ranks_; ++r) sums_.emplace_back(device());
}

float Replay::rounded(float x) const {
  return with_type(options_.dtype, [&]<class T>(T) { return widen(narrow<T>(x)); });
}

Replay::Values Replay::micro_batch(int step, int micro, int rank) {
  model_.load((*data_[rank])(step, micro));
  for (int l = 0; l < layout_.layers(); ++l) model_.forward(l, layout_.layer(params_, l));
  model_.loss(loss_scale_.value(), sums_[rank]);
  for (int l = layout_.layers(); l-- > 0;) {
    model_.backward(l, layout_.layer(params_, l), layout_.layer(grads_, l), Write::over);
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

Replay::Values Replay::gradients_once_a_step(int step) {
  std::vector<Values> of_rank;
  for (int r = 0; r < ranks_; ++r) {
    of_rank.push_back(micro_batch(step, 0, r));
    for (int a = 1; a < options_.accumulate; ++a) add(of_rank[r], micro_batch(step, a, r));
  }
  return mean_over_ranks(of_rank);
}

Replay::Values Replay::gradients_every_micro_batch(int step) {
  Values sum;
  for (int a = 0; a < options_.accumulate; ++a) {
    std::vector<Values> of_rank;
    for (int r = 0; r < ranks_; ++r) of_rank.push_back(micro_batch(step, a, r));
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
    const Layout cut(architecture(options_).sizes(), r,
                     ranks_);  // 01 is one rank: it owns everything
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
    totals.loss += sums_[r].totals.loss;
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
  const AdamSlice slice{master_.view(), momentum_.view(), variance_.view()};
  adam_.update(slice, grads_.view(), CastTo{params_.view()});
}

Verdict Replay::step(int step) {
  for (Sums& sums : sums_) clear(stream_, sums);
  Values grads = family_ == Family::once_a_step ? gradients_once_a_step(step)
                                                : gradients_every_micro_batch(step);
  for (float& g : grads) g = rounded(g / static_cast<float>(options_.accumulate));
  for (Sums& sums : sums_) fetch(stream_, sums);
  const Verdict verdict =
      decide(totals(grads), options_.accumulate * ranks_, options_.clip, loss_scale_.value());
  loss_scale_.update(verdict.skipped);
  if (!verdict.skipped) update(grads, verdict.grad_factor);
  return verdict;
}

Outcome Replay::run(const MakeData& make) {
  for (int r = 0; r < ranks_; ++r) data_.push_back(make(r, ranks_));
  Outcome outcome;
  for (int s = 0; s < options_.steps; ++s) outcome.verdicts.push_back(step(s));
  outcome.weights = values_of(master_);
  outcome.momentum = values_of(momentum_);
  outcome.variance = values_of(variance_);
  return outcome;
}

void check_same_bits(const std::vector<float>& ours, const std::vector<float>& expected,
                     const char* what) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  REQUIRE(ours.size() == expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (bits(ours[i]) == bits(expected[i])) continue;
    FAIL_CHECK(fmt::format("{} number {}: {} ({:08x}), expected {} ({:08x})", what, i, ours[i],
                           bits(ours[i]), expected[i], bits(expected[i])));
    return;  // the first difference says it
  }
}

void check_same_run(const Outcome& ours, const Outcome& expected) {
  const auto of_steps = [](const Outcome& run, auto Verdict::*member) {
    std::vector<float> numbers;
    for (const Verdict& verdict : run.verdicts) {
      const auto number = static_cast<float>(verdict.*member);
      // Which NaN it is depends on the processor that made it.
      numbers.push_back(std::isnan(number) ? NAN : number);
    }
    return numbers;
  };
  const auto check = [&](auto Verdict::*member, const char* what) {
    check_same_bits(of_steps(ours, member), of_steps(expected, member), what);
  };
  check(&Verdict::loss, "loss of step");
  check(&Verdict::grad_norm, "norm of step");
  check(&Verdict::skipped, "skipping of step");
  check_same_bits(ours.weights, expected.weights, "weight");
  check_same_bits(ours.momentum, expected.momentum, "momentum");
  check_same_bits(ours.variance, expected.variance, "variance");
}
}  // namespace zero::test
