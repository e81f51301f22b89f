// SPDX-License-Identifier: MIT
// The chapter whose folder this is compiled against, next to an independent double-precision
// training that plays all ranks in one process and shares no arithmetic with it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "tests/ranks/reference_model.hpp"
#include "tests/ranks/replay.hpp"
#include "tests/unit/reference_adam.hpp"
#include "trainer.hpp"

namespace zero::test {
namespace {
/// What a run comes to: the losses by step, the rest by global element number.
enum { losses, weights, momentum, variance, results };
using Results = std::array<Numbers, results>;
/// How far each of them may be off.
using Tolerance = std::array<double, results>;

/// eps is large, so that Adam is a smooth map and a rounding error stays of its own size; with
/// 1e-8 the sign of a gradient that is nearly zero would decide about a whole learning rate.
Options reference_options(Dtype dtype, int steps) {
  Options o = mlp_options(6, 3, dtype);
  o.batch = 4;
  o.accumulate = 2;
  o.steps = steps;
  o.lr = 5e-3;
  o.eps = 1e-2;
  o.weight_decay = 0.1;
  o.clip = 0.4;
  o.loss_scale = dtype == Dtype::fp16 ? 64 : 0;
  return o;
}

Numbers flat(const Layers& layers) {
  Numbers all;
  for (const Numbers& layer : layers) all.insert(all.end(), layer.begin(), layer.end());
  return all;
}

/// Of one micro-batch, numbered over all steps and ranks.
ReferenceModel::Result micro_batch(const ReferenceModel& model, const Options& o,
                                   std::int64_t number) {
  const auto data = make_data(o, Device::cpu);
  return model.loss_and_gradients(samples_of(*data, model.architecture, number * o.batch, o.batch));
}

/// The mean gradient of a step over all ranks and micro-batches, flat, and the mean loss.
Numbers mean_gradient(const ReferenceModel& model, const Options& o, int step, double& loss) {
  const int micro_batches = o.accumulate * ranks().size;
  Numbers mean(flat(model.params).size());
  loss = 0;
  for (int m = 0; m < micro_batches; ++m) {
    const auto one = micro_batch(model, o, step * micro_batches + m);
    const Numbers gradient = flat(one.gradients);
    loss += one.loss / micro_batches;
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / micro_batches;
  }
  return mean;
}

void clip(Numbers& gradient, double largest) {
  const double norm =
      std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
  for (double& g : gradient) g *= largest > 0 && norm > largest ? largest / norm : 1;
}

void set_params(ReferenceModel& model, const Numbers& weights) {
  auto next = weights.begin();
  for (Numbers& layer : model.params) {
    for (double& w : layer) w = *next++;
  }
}

double largest_difference(const Numbers& a, const Numbers& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Moves each number by up to `part` of itself, the same way whenever it is called.
void nudge(Numbers& numbers, double part, const Generator& noise) {
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] *= 1 + part * noise.uniform(i);
}

/// gradient_error: every gradient element is moved by up to that part of the largest one. With it,
/// weights and moments are nudged at each step by two roundings of fp32, always in the same
/// direction, as a rounded beta does it. `disturbance` is the seed of these movements.
Results reference_run(const Options& o, double gradient_error = 0, std::uint64_t disturbance = 0) {
  ReferenceModel model = initial_model(o);
  const Generator noise(disturbance, RandomStream::inputs);
  Numbers all_losses, params = flat(model.params);
  ReferenceAdam adam(o, params.size());
  std::uint64_t drawn = 0;
  for (int step = 0; step < o.steps; ++step) {
    Numbers gradient = mean_gradient(model, o, step, all_losses.emplace_back());
    const double largest = largest_difference(gradient, Numbers(gradient.size()));
    for (double& g : gradient) g += gradient_error * largest * noise.uniform(drawn++);
    clip(gradient, o.clip);
    adam.update(params, gradient);
    if (gradient_error > 0) {
      nudge(params, 0x1p-23, Generator(disturbance, RandomStream::weights));
      nudge(adam.momentum, 0x1p-23, Generator(disturbance, RandomStream::codes));
      nudge(adam.variance, 0x1p-23, Generator(disturbance, RandomStream::positions));
    }
    set_params(model, params);
  }
  return {all_losses, params, adam.momentum, adam.variance};
}

/// What rounding may do to a gradient, relative to the largest one. fp32: an element is a sum of
/// some 50 products through three layers; their half units in the last place add up as the root of
/// the count, 8 of them. 16 bit: sums are fp32, only what is stored rounds, 3 activations, 3
/// gradients of activations, 3 of weights: 3 half units.
double rounding(Dtype dtype) {
  if (dtype == Dtype::fp32) return 8 * 0x1p-24;
  return 3 * (dtype == Dtype::fp16 ? 0x1p-11 : 0x1p-8);
}

/// Twice the largest of eight disturbed runs' differences: as far as the rounding above can carry.
Tolerance tolerance_of(const Options& o, const Results& exact) {
  Tolerance tolerance{};
  for (std::uint64_t i = 1; i <= 8; ++i) {
    const Results other = reference_run(o, rounding(o.dtype), i);
    for (int k = 0; k < results; ++k) {
      tolerance[k] = std::max(tolerance[k], 2 * largest_difference(exact[k], other[k]));
    }
  }
  // A single step's loss is computed before any update, so no disturbance reaches it.
  tolerance[losses] += rounding(o.dtype) * exact[losses][0];
  return tolerance;
}

Results our_run(const Options& o) {
  const Outcome ours = run<Trainer>(o, ordinary_data(o));
  const auto exact = [](const std::vector<float>& xs) { return Numbers(xs.begin(), xs.end()); };
  Numbers all_losses;
  for (const Verdict& verdict : ours.verdicts) all_losses.push_back(verdict.loss);
  return {all_losses, exact(ours.weights), exact(ours.momentum), exact(ours.variance)};
}

void compare(const Options& o) {
  const Results exact = reference_run(o), ours = our_run(o);
  const Tolerance tolerance = tolerance_of(o, exact);
  // The comparison must be able to see something: the run has moved much farther than it allows.
  Options unmoved = o;
  unmoved.lr = 0;
  const double least = o.dtype == Dtype::fp32 ? 1000 : o.dtype == Dtype::fp16 ? 15 : 2;
  for (int k = 0; k < results; ++k) {
    constexpr const char* names[] = {"losses", "weights", "momentum", "variance"};
    INFO(fmt::format("dtype {}, {} steps: {}", name_of(o.dtype), o.steps, names[k]));
    CHECK(largest_difference(exact[k], ours[k]) <= tolerance[k]);
    if (k == losses) continue;
    const Numbers start = k == weights ? reference_run(unmoved)[weights] : Numbers(exact[k].size());
    CHECK(largest_difference(exact[k], start) > least * tolerance[k]);
  }
}
}  // namespace

TEST_CASE("the run agrees with a double-precision reference after 1 step") {
  for (const Dtype dtype : dtypes_of<Trainer>()) compare(reference_options(dtype, 1));
}

TEST_CASE("the run agrees with a double-precision reference after 100 steps") {
  compare(reference_options(Dtype::fp32, 100));
}

TEST_CASE("the run agrees with a double-precision reference in 16 bit after 20 steps") {
  for (const Dtype dtype : dtypes_of<Trainer>()) {
    if (dtype != Dtype::fp32) compare(reference_options(dtype, 20));
  }
}

TEST_CASE("gradients are averaged, not updates") {
  if (ranks().size == 1) return;
  Options o = reference_options(Dtype::fp32, 1);
  o.clip = 0;
  o.accumulate = 1;
  const Results of_gradients = reference_run(o);
  // The other way: every rank updates with its own gradient, and the weights are averaged.
  const ReferenceModel start = initial_model(o);
  Numbers of_updates(of_gradients[weights].size());
  for (int r = 0; r < ranks().size; ++r) {
    Numbers own = flat(start.params);
    ReferenceAdam(o, own.size()).update(own, flat(micro_batch(start, o, r).gradients));
    for (std::size_t i = 0; i < own.size(); ++i) of_updates[i] += own[i] / ranks().size;
  }
  const Numbers ours = our_run(o)[weights];
  const double distance = largest_difference(of_gradients[weights], ours);
  CHECK(distance <= tolerance_of(o, of_gradients)[weights]);
  CHECK(largest_difference(of_updates, ours) > 100 * distance);
}

TEST_CASE("the two families differ by no more than their bound") {
  Options o = reference_options(Dtype::fp32, 1);
  o.accumulate = 3;
  o.clip = o.weight_decay = 0;
  o.beta1 = 0;  // so that after one step momentum is the gradient itself
  const int n = ranks().size;
  const Numbers ours = our_run(o)[momentum];
  const bool once = family_of(Trainer::chapter) == Family::once_a_step;
  const Family other = once ? Family::every_micro_batch : Family::once_a_step;
  const std::vector<float> theirs = replay(o, other, ordinary_data(o)).momentum;

  const ReferenceModel model = initial_model(o);
  Numbers mean_magnitude(ours.size());
  const int micro_batches = n * o.accumulate;
  for (int m = 0; m < micro_batches; ++m) {
    const Numbers gradient = flat(micro_batch(model, o, m).gradients);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      mean_magnitude[i] += std::abs(gradient[i]) / micro_batches;
    }
  }
  // Each family rounds an element at most N + A times on its way (A additions and one division on
  // one side, N additions and one division on the other), each time by at most 2^-24 of a partial
  // sum, which is at most the sum of the magnitudes.
  int different = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(ours[i] - theirs[i]);
    different += difference > 0;
    CHECK(difference <= 2 * (n + o.accumulate) * 0x1p-24 * mean_magnitude[i]);
  }
  CHECK((different > 0) == (n > 1));  // on several ranks they are two families
}
}  // namespace zero::test
