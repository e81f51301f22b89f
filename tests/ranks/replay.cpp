// SPDX-License-Identifier: MIT
// The replay: a process computes alone, without a communicator, what all ranks of a run compute.
// Every chapter must have its bits. It uses the chapters' Model and Adam; added() and divided()
// round as the ranks' reduction does, and totals() adds the squares shard by shard, as ranks do.
#include <cmath>
#include <numeric>

#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// Gradients of all layers, one layer after the other, without padding.
using Values = std::vector<float>;

struct Replay {
  Replay(const Options& options, const Tamper& tamper) : options(options) {
    for (int l = 0; l < layout.layers(); ++l) {
      for (Replicated* each : {&params, &master}) model.initialise(each->layer(l));
    }
    for (int r = 0; r < count; ++r) {
      sums.emplace_back(device());
      data.push_back(std::make_unique<TestData>(options, tamper, r, count));
    }
  }

  /// Rank r's gradients of one micro-batch, without padding, and its loss added to sums[r].
  Values micro_batch(int step, int micro, int r) {
    model.load((*data[r])(step, micro));
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, params.layer(l));
    model.loss(sums[r], loss_scale.value());
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, params.layer(l), grads.layer(l), Write::overwrite);
    }
    stream.synchronise();
    Values all;
    for (int l = 0; l < layout.layers(); ++l) {
      const Values some = values(grads.layer(l).part(0, layout.used_size(l)));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  /// of(0) + of(1) + ..., in this order, each sum rounded to `dtype`.
  static Values added(int terms, Dtype dtype, auto of) {
    Values sum = of(0);
    for (int term = 1; term < terms; ++term) {
      const Values other = of(term);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = rounded(dtype, sum[i] + other[i]);
    }
    return sum;
  }

  Values divided(Values all, int divisor) const {
    for (float& x : all) x = rounded(options.dtype, x / static_cast<float>(divisor));
    return all;
  }

  /// A step's gradients: the sum over micro-batches of means over ranks, in the chapter's order.
  Values gradients(int step) {
    const auto mean = [&](auto of) { return divided(added(count, Dtype::fp32, of), count); };
    const auto sum = [&](auto of) { return added(options.accumulate, options.dtype, of); };
    if (reduction_schedule(chapter) == "once a step") {
      return mean([&](int r) { return sum([&](int a) { return micro_batch(step, a, r); }); });
    }
    return sum([&](int a) { return mean([&](int r) { return micro_batch(step, a, r); }); });
  }

  /// Adds, rank by rank, the losses and the shards' squares, in eight lanes like squared_norm().
  Totals totals(const Values& of) {
    Totals totals;
    for (int r = 0; r < count; ++r) {
      const Layout cut = layout_of(options, r, count);
      double squares = 0;
      for (int l = 0; l < cut.layers(); ++l) {
        double lanes[8] = {};
        for (std::int64_t i = 0; i < cut.shard_size(l); ++i) {
          const std::int64_t at = cut.shard_start(l) + i;
          const double x = at < cut.used_size(l) ? of[cut.first_parameter(l) + at] : 0;
          lanes[i % 8] += x * x;
        }
        squares += std::accumulate(lanes, lanes + 8, 0.0);
      }
      totals.squares += squares;
      totals.loss += await_totals(stream, sums[r]).loss;
    }
    return totals;
  }

  void update(const Values& with, float factor) {
    for (int l = 0; l < layout.layers(); ++l) {
      const float* from = with.data() + layout.first_parameter(l);
      fill(grads.layer(l).part(0, layout.used_size(l)), [&](std::int64_t i) { return from[i]; });
    }
    adam.begin(factor);
    adam.update({master.view(), momentum.view(), variance.view(), params.view()}, grads.view());
  }

  StepResult step(int step) {
    for (Sums& each : sums) clear(stream, each);
    const Values mean = divided(gradients(step), options.accumulate);
    const StepResult result = step_result({.totals = totals(mean),
                                           .micro_batches = options.accumulate,
                                           .ranks = count,
                                           .loss_scale = loss_scale.value(),
                                           .clip = options.clip});
    loss_scale.update(result.skipped);
    if (!result.skipped) update(mean, result.grad_factor);
    return result;
  }

  const Options& options;
  const int count = ranks().size;
  // On GPUs layers are aligned as in a run (--align 8): cuBLAS may choose its algorithm by that.
  const Layout layout{architecture(options).sizes(), 0, 1, on_gpus() ? 8 : 1};
  Stream stream{"replay", device()};
  Model model{options, stream};
  Adam adam{options, stream};
  LossScale loss_scale{options};
  Replicated params{device(), layout, State::parameters, options.dtype};
  Replicated grads{device(), layout, State::gradients, options.dtype};
  Replicated master{device(), layout, State::master, Dtype::fp32};
  Replicated momentum{device(), layout, State::momentum, Dtype::fp32};
  Replicated variance{device(), layout, State::variance, Dtype::fp32};
  std::vector<Sums> sums;  // sums[r] and data[r] are rank r's
  std::vector<std::unique_ptr<TestData>> data;
};

/// The results of the steps. Each NaN becomes NAN, because its bits depend on the processor.
Said said_by(auto step, int steps) {
  const auto number = [](float x) { return std::isnan(x) ? NAN : x; };
  Said said;
  for (int s = 0; s < steps; ++s) {
    const StepResult result = step(s);
    said.losses.push_back(number(result.loss));
    said.norms.push_back(number(result.grad_norm));
    said.skipped.push_back(result.skipped);
  }
  return said;
}

/// Compares a rank's slices with the replay's. A failure names the first number that differs.
void check_state(const Part& part, View AdamState::*of, const Replicated& expected,
                 const char* what) {
  for (int l = 0; l < part.layout.layers(); ++l) {
    const View slice = part.trainer->adam_state(l).*of;
    CHECK(slice.size >= part.layout.shard_size(l));
    if (slice.used == 0) continue;  // only padding, which the replay lacks
    check_same_bits(values(slice.part(0, slice.used)),
                    values(expected.layer(l).part(slice.start, slice.used)), what,
                    part.layout.first_parameter(l) + slice.start);
  }
}
}  // namespace

Said check_against_replay(Options options, const Tamper& tamper, int most_prefetch) {
  Replay all(options, tamper);
  const Said expected = said_by([&](int s) { return all.step(s); }, options.steps);
  all.stream.synchronise();
  for (int prefetch = 0; prefetch <= (chapter.prefetches() ? most_prefetch : 0); ++prefetch) {
    options.prefetch = prefetch;
    INFO(fmt::format("dtype {} micro-batches {} prefetch {}", name_of(options.dtype),
                     options.accumulate, prefetch));
    Part part(options, tamper);
    const Said said = said_by([&](int s) { return part.step(s); }, options.steps);
    part.trainer->synchronise();
    check_same_bits(said.losses, expected.losses, "loss of step", 1);
    check_same_bits(said.norms, expected.norms, "norm of step", 1);
    check_same_bits(said.skipped, expected.skipped, "skipping of step", 1);
    check_state(part, &AdamState::weights, all.master, "weight");
    check_state(part, &AdamState::momentum, all.momentum, "momentum");
    check_state(part, &AdamState::variance, all.variance, "variance");
  }
  return expected;
}

void check_third_step_skipped(const Options& options, int most_prefetch) {
  const int samples_a_step = options.accumulate * ranks().size * options.batch;
  const Tamper tamper = poison(options, 3 * samples_a_step - 1);
  const Said said = check_against_replay(options, tamper, most_prefetch);
  CHECK(said.skipped == std::vector<float>{0, 0, 1, 0});
}
}  // namespace zero::test
