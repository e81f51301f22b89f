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
  Replay(const Options& options, const Tamper& tamper) : options(options) {
    for (int l = 0; l < layout.layers(); ++l) {
      for (const Whole* each : {&params, &master}) model.initialise(each->layer(l));
    }
    for (int r = 0; r < count; ++r) {
      sums.emplace_back(device());
      data.push_back(std::make_unique<TestData>(options, tamper, r, count));
    }
  }

  float rounded(float x) const { return test::rounded(options.dtype, x); }

  /// The real elements of all layers, widened; waits for the stream.
  Values values_of(const Whole& state) {
    stream.synchronise();
    Values all;
    for (int l = 0; l < layout.layers(); ++l) {
      const Values some = values(state.layer(l).part(0, layout.used_size(l)));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  /// Rank r's gradients of one micro-batch, all layers, and its loss added to sums[r].
  Values micro_batch(int step, int micro, int r) {
    model.load((*data[r])(step, micro));
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, params.layer(l));
    model.loss(loss_scale.value(), sums[r]);
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, params.layer(l), grads.layer(l), Write::over);
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
  Totals totals(const Values& of) {
    Totals totals;
    for (int r = 0; r < count; ++r) {
      const Layout cut = layout_of(options, r, count);  // 01 is one rank: it owns everything
      double squares = 0;
      for (int l = 0; l < cut.layers(); ++l) {
        double lanes[8] = {};
        for (std::int64_t i = 0; i < cut.own_size(l); ++i) {
          const std::int64_t at = cut.own_start(l) + i;
          const double x = at < cut.used_size(l) ? of[cut.layer_start(l) + at] : 0;
          lanes[i % 8] += x * x;
        }
        for (const double lane : lanes) squares += lane;
      }
      totals.squares += squares;
      totals.loss += await_totals(stream, sums[r]).loss;
    }
    return totals;
  }

  void update(const Values& with, float factor) {
    for (int l = 0; l < layout.layers(); ++l) {
      const float* from = with.data() + layout.layer_start(l);
      fill(grads.layer(l).part(0, layout.used_size(l)), [&](std::int64_t i) { return from[i]; });
    }
    adam.begin(factor);
    adam.update({master.view(), momentum.view(), variance.view(), params.view()}, grads.view());
  }

  Verdict step(int step) {
    for (Sums& each : sums) clear(stream, each);
    Values mean = gradients(step);
    for (float& g : mean) g = rounded(g / static_cast<float>(options.accumulate));
    const Verdict verdict = judge({.totals = totals(mean),
                                   .micro_batches = options.accumulate,
                                   .ranks = count,
                                   .loss_scale = loss_scale.value(),
                                   .clip = options.clip});
    loss_scale.update(verdict.skipped);
    if (!verdict.skipped) update(mean, verdict.grad_factor);
    return verdict;
  }

  const Options& options;
  const int count = ranks().size;
  // cuBLAS may take another way where memory is aligned otherwise, so there as in the chapters.
  const Layout layout{architecture(options).sizes(), 0, 1, on_gpus() ? 8 : 1};
  Stream stream{"replay", device()};
  Mlp model{options, stream};
  Adam adam{options, stream};
  LossScale loss_scale{options};
  Whole params{device(), layout, State::parameters, options.dtype};
  Whole grads{device(), layout, State::gradients, options.dtype};
  Whole master{device(), layout, State::master, Dtype::fp32};
  Whole momentum{device(), layout, State::momentum, Dtype::fp32};
  Whole variance{device(), layout, State::variance, Dtype::fp32};
  std::vector<Sums> sums;  // of each rank, as is the data
  std::vector<std::unique_ptr<TestData>> data;
};

/// One kind of state by global element number, from the slices that the ranks hold.
std::vector<float> whole_state(Part& part, View AdamSlice::*member) {
  std::vector<std::uint64_t> mine(part.layout.parameters());
  for (int l = 0; l < part.layout.layers(); ++l) {
    const View slice = part.trainer->slice(l).*member;
    const OnHost host(slice);
    for (std::int64_t i = 0; i < slice.used; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(host.as<float>()[i]);
      mine[part.layout.layer_start(l) + slice.start + i] = bits;
    }
  }
  const std::vector<std::uint64_t> all = part.comm.gather(mine);
  std::vector<std::uint32_t> merged(mine.size());  // what a rank does not hold, or has as 0, is 0
  for (std::size_t at = 0; at < all.size(); ++at) merged[at % mine.size()] |= all[at];
  std::vector<float> values;
  for (const std::uint32_t bits : merged) values.push_back(std::bit_cast<float>(bits));
  return values;
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
}  // namespace

Outcome run(const Options& options, const Tamper& tamper) {
  Part part(options, tamper);
  std::vector<Verdict> verdicts;
  for (int s = 0; s < options.steps; ++s) verdicts.push_back(part.step(s));
  part.trainer->synchronise();
  const auto whole = [&](View AdamSlice::*member) { return whole_state(part, member); };
  return {verdicts, whole(&AdamSlice::weights), whole(&AdamSlice::momentum),
          whole(&AdamSlice::variance)};
}

Outcome check_against_replay(Options options, const Tamper& tamper, int most_prefetch) {
  Replay all(options, tamper);
  Outcome expected;
  for (int s = 0; s < options.steps; ++s) expected.verdicts.push_back(all.step(s));
  expected.weights = all.values_of(all.master);
  expected.momentum = all.values_of(all.momentum);
  expected.variance = all.values_of(all.variance);
  for (int prefetch = 0; prefetch <= (chapter.prefetches() ? most_prefetch : 0); ++prefetch) {
    options.prefetch = prefetch;
    INFO(fmt::format("dtype {} micro-batches {} prefetch {}", name_of(options.dtype),
                     options.accumulate, prefetch));
    check_same_run(run(options, tamper), expected);
  }
  return expected;
}

void check_third_step_skipped(const Options& options, int most_prefetch) {
  const int samples_a_step = options.accumulate * ranks().size * options.batch;
  const Tamper tamper = poison(options, 3 * samples_a_step - 1);
  const Outcome outcome = check_against_replay(options, tamper, most_prefetch);
  for (int s = 0; s < options.steps; ++s) CHECK(outcome.verdicts[s].skipped == (s == 2));
}
}  // namespace zero::test
