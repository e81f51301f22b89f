// SPDX-License-Identifier: MIT
// One process that plays all ranks of a run, without a communicator, without shards and without
// padding: what every chapter must equal to the last bit. It uses the same model and the same Adam,
// and spells out every rounding of the reduction.
#include <cmath>

#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// As stored: every element has been rounded to the run's dtype.
using Values = std::vector<float>;

struct Replay {
  Replay(const Options& options, const MakeData& make) : options(options) {
    for (int l = 0; l < layout.layers(); ++l) {
      for (const Tensor* each : {&params, &master}) model.initialise(l, layout.layer(*each, l));
    }
    for (int r = 0; r < count; ++r) {
      sums.emplace_back(device());
      data.push_back(make(r, count));
    }
  }

  Tensor state() const {
    return Tensor(device(), Kind::optimizer, Dtype::fp32, layout.full_size());
  }

  float rounded(float x) const { return test::rounded(options.dtype, x); }

  /// The real elements of a tensor of all layers, widened; waits for the stream.
  Values values_of(const Tensor& tensor) {
    stream.synchronise();
    Values all;
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = layout.layer(tensor, l);
      const Values some = values(layer.part(0, layer.used));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  /// Rank r's gradients of one micro-batch, all layers, and its loss added to sums[r].
  Values micro_batch(int step, int micro, int r) {
    model.load((*data[r])(step, micro));
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, layout.layer(params, l));
    model.loss(loss_scale.value(), sums[r]);
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, layout.layer(params, l), layout.layer(grads, l), Write::over);
    }
    return values_of(grads);
  }

  /// of(rank), added in rank order in fp32, divided, and rounded once.
  Values mean_over_ranks(auto of) const {
    Values mean = of(0);
    for (int r = 1; r < count; ++r) {
      const Values other = of(r);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += other[i];
    }
    for (float& x : mean) x = rounded(x / static_cast<float>(count));
    return mean;
  }

  /// of(micro-batch), added one by one, rounded each time.
  Values sum_over_micro_batches(auto of) const {
    Values sum = of(0);
    for (int a = 1; a < options.accumulate; ++a) {
      const Values other = of(a);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = rounded(sum[i] + other[i]);
    }
    return sum;
  }

  Values gradients(int step) {
    if (family(chapter) == "once a step") {
      return mean_over_ranks([&](int r) {
        return sum_over_micro_batches([&](int a) { return micro_batch(step, a, r); });
      });
    }
    return sum_over_micro_batches(
        [&](int a) { return mean_over_ranks([&](int r) { return micro_batch(step, a, r); }); });
  }

  /// Squares of what each rank owns, in that rank's order, then added over the ranks.
  Totals totals(const Values& of) const {
    Totals totals;
    for (int r = 0; r < count; ++r) {
      const Layout cut(shape.sizes(), r, count);  // 01 is one rank: it owns everything
      double squares = 0;
      for (int l = 0; l < cut.layers(); ++l) {
        const std::int64_t size = cut.layer_size(l) / count;
        double lanes[8] = {};
        for (std::int64_t i = 0; i < size && cut.shard_start(l) + i < shape.size(l); ++i) {
          const double x = of[cut.layer_start(l) + cut.shard_start(l) + i];
          lanes[i % 8] += x * x;
        }
        for (const double lane : lanes) squares += lane;
      }
      totals.squares += squares;
      totals.loss += sums[r].totals.loss;
    }
    return totals;
  }

  void update(const Values& with, float factor) {
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = layout.layer(grads, l);
      const float* from = with.data() + layout.layer_start(l);
      fill(layer.part(0, layer.used), [&](std::int64_t i) { return from[i]; });
    }
    adam.begin(factor);
    const AdamSlice slice{master.view(), momentum.view(), variance.view()};
    adam.update(slice, grads.view(), CastTo{params.view()});
  }

  Verdict step(int step) {
    for (Sums& each : sums) clear(stream, each);
    Values mean = gradients(step);
    for (float& g : mean) g = rounded(g / static_cast<float>(options.accumulate));
    for (Sums& each : sums) fetch(stream, each);
    const Verdict verdict =
        decide(totals(mean), options.accumulate * count, options.clip, loss_scale.value());
    loss_scale.update(verdict.skipped);
    if (!verdict.skipped) update(mean, verdict.grad_factor);
    return verdict;
  }

  const Options options;
  const int count = ranks().size;
  const Architecture shape = architecture(options);
  // cuBLAS may take another way where memory is aligned otherwise, so there as in the chapters.
  const Layout layout{shape.sizes(), 0, 1, device() == Device::cpu ? 1 : 8};
  Stream stream{"replay", device()};
  Mlp model{options, stream};
  Adam adam{options, stream};
  LossScale loss_scale{options};
  Tensor params{device(), Kind::parameters, options.dtype, layout.full_size()};
  Tensor grads{device(), Kind::gradients, options.dtype, layout.full_size()};
  Tensor master = state(), momentum = state(), variance = state();
  std::vector<Sums> sums;  // of each rank, as is the data
  std::vector<std::unique_ptr<Data>> data;
};
}  // namespace

Outcome replay(const Options& options, const MakeData& make) {
  Replay all(options, make);
  std::vector<Verdict> verdicts;
  for (int s = 0; s < options.steps; ++s) verdicts.push_back(all.step(s));
  return {verdicts, all.values_of(all.master), all.values_of(all.momentum),
          all.values_of(all.variance)};
}

void check_same_run(const Outcome& ours, const Outcome& expected) {
  const auto check = [&](auto Verdict::*member, const char* what) {
    const auto of_steps = [&](const Outcome& run) {
      std::vector<float> numbers;
      for (const Verdict& verdict : run.verdicts) {
        const auto number = static_cast<float>(verdict.*member);
        // Which NaN it is depends on the processor that made it.
        numbers.push_back(std::isnan(number) ? NAN : number);
      }
      return numbers;
    };
    check_same_bits(of_steps(ours), of_steps(expected), what, 1);
  };
  check(&Verdict::loss, "loss of step");
  check(&Verdict::grad_norm, "norm of step");
  check(&Verdict::skipped, "skipping of step");
  check_same_bits(ours.weights, expected.weights, "weight");
  check_same_bits(ours.momentum, expected.momentum, "momentum");
  check_same_bits(ours.variance, expected.variance, "variance");
}
}  // namespace zero::test
