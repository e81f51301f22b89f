// SPDX-License-Identifier: MIT
// A chapter next to an independent reference that plays all ranks in one process, shares no
// arithmetic with it, and says how far rounding may go.
#include <doctest/doctest.h>

#include "tests/ranks/ranks.hpp"
#include "tests/ranks/reference_model.hpp"

namespace zero::test {
namespace {
using Intervals = std::vector<Interval>;

Options reference_options(Dtype dtype) {
  Options o = mlp_options(6, 3, dtype);
  o.batch = 4;
  o.accumulate = 2;
  o.steps = 8;
  o.weight_decay = 0.1;
  o.clip = 0.4;
  o.loss_scale = 64;
  return o;
}

template <class Vectors> auto flat(const Vectors& layers) {
  auto all = layers.front();
  for (std::size_t l = 1; l < layers.size(); ++l) {
    all.insert(all.end(), layers[l].begin(), layers[l].end());
  }
  return all;
}

/// Of one micro-batch, numbered over all steps and ranks.
template <class Number>
auto micro_batch(const ReferenceModel<Number>& model, const Options& o, std::int64_t number) {
  const auto data = make_data(o, Device::cpu);
  return model.loss_and_gradients(samples_of(*data, model.architecture, number * o.batch, o.batch));
}

/// What lies on the ranks between two steps.
struct State {
  std::vector<float> weights, momentum, variance;
};

State state_of(Part& part) {
  part.trainer->synchronise();
  return {whole_state(part, &AdamSlice::weights), whole_state(part, &AdamSlice::momentum),
          whole_state(part, &AdamSlice::variance)};
}

/// A step from those weights: the mean loss, and the gradient before it is unscaled and clipped. It
/// is added in the chapter's order, and stored where the chapter stores it. (NCCL's own sum of two
/// ranks is stored before it is halved, which changes nothing.)
std::pair<Interval, Intervals> expected_step(const Options& o, const std::vector<float>& weights,
                                             int step) {
  ReferenceModel<Interval> model{architecture(o), {}, o.dtype, 1, device()};
  if (o.dtype == Dtype::fp16) model.scale = o.loss_scale;
  auto next = weights.begin();
  for (const std::int64_t size : model.architecture.sizes()) {
    Numbers& layer = model.params.emplace_back();
    for (std::int64_t i = 0; i < size; ++i) layer.push_back(rounded(o.dtype, *next++));
  }
  const int n = ranks().size;
  Sum<Interval> loss;
  const auto gradient = [&](int micro, int rank) {
    const auto result = micro_batch(model, o, (step * o.accumulate + micro) * n + rank);
    loss.add(result.loss, 1);
    return flat(result.gradients);
  };
  const auto sum = [](int count, auto of, auto keep) {
    Intervals sum = of(0);
    for (int k = 1; k < count; ++k) {
      const Intervals other = of(k);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = keep(sum[i] + other[i]);
    }
    return sum;
  };
  const auto store = [&](Interval x) { return model.store(x); };
  const auto divided = [&](Intervals all, int by) {
    for (Interval& x : all) x = store(x / by);
    return all;
  };
  const auto mean = [&](auto of) { return divided(sum(n, of, std::identity()), n); };
  const auto micro_batches = [&](auto of) { return sum(o.accumulate, of, store); };
  const Intervals all =
      family_of(chapter) == Family::once_a_step
          ? mean([&](int r) { return micro_batches([&](int a) { return gradient(a, r); }); })
          : micro_batches([&](int a) { return mean([&](int r) { return gradient(a, r); }); });
  return {loss.total(u) / (n * o.accumulate), divided(all, o.accumulate)};
}

/// low <= x <= high, but for so many roundings of numbers as large as `magnitude`.
bool within(double x, double low, double high, double roundings, double magnitude) {
  // 1.01 covers the squares of u; what is very small underflows.
  const double off = 1.01 * roundings * u * magnitude + 0x1p-126;
  return low - off <= x && x <= high + off;
}

/// The same, checked.
void check_within(const char* what, double x, double low, double high, double roundings,
                  double magnitude) {
  INFO(fmt::format("{} {}, expected {} to {}", what, x, low, high));
  CHECK(within(x, low, high, roundings, magnitude));
}

/// The norm and the factor that the step's verdict names. The norm is rounded once, the factor too.
void check_factor(const Options& o, const Verdict& verdict, const Intervals& gradient) {
  double least = 0, most = 0;
  for (const Interval& g : gradient) {
    least += std::pow(std::max({g.low, -g.high, 0.0}), 2);
    most += std::pow(g.magnitude(), 2);
  }
  const double scale = o.dtype == Dtype::fp16 ? o.loss_scale : 1, norm = verdict.grad_norm;
  check_within("norm", norm, std::sqrt(least) / scale, std::sqrt(most) / scale, 1, norm);
  const double factor = std::min(1.0, o.clip / norm) / scale;
  check_within("factor", verdict.grad_factor, factor, factor, 2, factor);
}

/// The step from `before` to `after`, as the papers write Adam. Roundings of the momentum:
/// gradient, constant, product, sum. Of the variance: gradient twice, square, constant, product,
/// sum. Of the weight: root, correction and product, eps and sum, step size and product, quotient,
/// sum.
void check_update(const Options& o, int step, const State& before, const State& after,
                  const Intervals& gradient, double factor) {
  const double left1 = 1 - std::pow(o.beta1, step + 1), left2 = 1 - std::pow(o.beta2, step + 1);
  int seen = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    INFO(fmt::format("number {}", i));
    const double w = before.weights[i], m = before.momentum[i], v = before.variance[i];
    const double new_m = after.momentum[i], new_v = after.variance[i];
    const auto fits = [&](double times) {
      const double low = times * factor * gradient[i].low, high = times * factor * gradient[i].high;
      const double decayed = o.beta1 * m, part = 1 - o.beta1;
      return within(new_m, decayed + part * low, decayed + part * high, 4,
                    std::abs(decayed) + part * std::max(-low, high));
    };
    CHECK(fits(1));
    seen += !fits(1 + 0x1p-14);
    const double least = std::max({gradient[i].low, -gradient[i].high, 0.0}) * factor;
    const double most = gradient[i].magnitude() * factor;
    const auto variance = [&](double g) { return o.beta2 * v + (1 - o.beta2) * g * g; };
    check_within("variance", new_v, variance(least), variance(most), 6, variance(most));
    // From the moments as they are: their errors have been judged.
    const double kept = w * (1 - o.lr * o.weight_decay);
    const double moved = o.lr / left1 * new_m / (std::sqrt(new_v / left2) + o.eps);
    check_within("weight", after.weights[i], kept - moved, kept - moved, 9,
                 std::abs(kept) + std::abs(moved));
  }
  CHECK(seen > 0);  // a gradient that is wrong by 2^-14 of itself
}
}  // namespace

TEST_CASE("each step agrees with a double-precision reference from where it began") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    const Options o = reference_options(dtype);
    Part part(o, ordinary_data(o));
    State before = state_of(part);
    const Numbers initial = flat(initial_model(o).params);
    CHECK(Numbers(before.weights.begin(), before.weights.end()) == initial);
    for (int step = 0; step < o.steps; ++step) {
      INFO(fmt::format("{}, step {}", name_of(dtype), step));
      const auto [loss, gradient] = expected_step(o, before.weights, step);
      const Verdict verdict = part.step(step);
      const State after = state_of(part);
      check_within("loss", verdict.loss, loss.low, loss.high, 1, loss.high);
      check_factor(o, verdict, gradient);
      check_update(o, step, before, after, gradient, verdict.grad_factor);
      before = after;
    }
  }
}

TEST_CASE("the two families differ by no more than their bound") {
  Options o = reference_options(Dtype::fp32);
  o.steps = 1;
  o.accumulate = 3;
  o.clip = 0;
  o.beta1 = 0;  // so that after one step momentum is the gradient itself
  const int n = ranks().size;
  const std::vector<float> ours = run(o, ordinary_data(o)).momentum;
  const bool once = family_of(chapter) == Family::once_a_step;
  const Family other = once ? Family::every_micro_batch : Family::once_a_step;
  const std::vector<float> theirs = replay(o, other, ordinary_data(o)).momentum;

  const ReferenceModel<double> model = initial_model(o);
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
