// SPDX-License-Identifier: MIT
// Adam against the papers' formulas in double, against PyTorch's numbers, and against itself: cut
// in any way, with its gradients scaled before or within, it gives the same bits.
#include "train/adam.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "compute/cpu/adam_loop.hpp"
#include "compute/generator.hpp"
#include "tests/unit/elements.hpp"
#include "tests/unit/reference_adam.hpp"

namespace zero::test {

namespace {

/// A rank's slice with its gradients; params are the weights in fp32, else a copy of 16 bit.
struct Slice {
  Slice(Dtype dtype, std::int64_t size)
      : weights(Kind::optimizer, Dtype::fp32, size),
        momentum(Kind::optimizer, Dtype::fp32, size),
        variance(Kind::optimizer, Dtype::fp32, size),
        grads(Kind::gradients, dtype, size),
        narrow_params(Kind::parameters, dtype, dtype == Dtype::fp32 ? 0 : size) {}

  View params() const { return narrow_params.size() ? narrow_params.view() : weights.view(); }
  AdamSlice slice() const { return {0, weights.view(), momentum.view(), variance.view()}; }
  AdamSlice slice(std::int64_t first, std::int64_t count) const {
    const AdamSlice whole = slice();
    return {first,
            whole.weights.part(first, count),
            whole.momentum.part(first, count),
            whole.variance.part(first, count)};
  }
  /// Everything that an update writes.
  std::vector<std::vector<std::uint32_t>> state() const {
    return {bits(weights.view()), bits(momentum.view()), bits(variance.view()), bits(params())};
  }

  Tensor weights, momentum, variance, grads, narrow_params;
};

Options options_with(double weight_decay) {
  Options options;
  options.lr = 2e-3;
  options.weight_decay = weight_decay;
  return options;
}

/// The reference, and how far an Adam of unit roundoff u may be from it.
///
/// After t steps each term of the momentum has passed at most 3 t + 1 roundings (the gradient, the
/// constant, the product, the sum; then a constant, a product and a sum a step), so it is off by at
/// most (3 t + 1) u times the sum of the terms' magnitudes. The variance has positive terms only:
/// off by a factor of 1 + (3 t + 3) u. Its root halves that; with the root itself, the correction
/// (constant and product) and eps (constant and sum) the denominator is off by (1.5 t + 6.5) u.
/// With the step size (constant and product) and the quotient, the update is off by
/// (4.5 t + 10.5) u times its magnitude; it is subtracted from the decayed weight (constant,
/// product, sum). 1 - beta^t is formed in double from a power rounded to double, so it is off by
/// 2^-53 / (1 - beta^t) of itself, halved by the root. 1.01 covers the products of these.
struct Bounded {
  Bounded(const Options& options, std::vector<double> initial, double u)
      : adam(options, initial.size()),
        weights(std::move(initial)),
        error(weights.size()),
        magnitude(weights.size()),
        u(u) {}

  void update(const std::vector<double>& grads) {
    const std::vector<double> before = weights;
    adam.update(weights, grads);
    const double t = adam.steps;
    const double left1 = 1 - std::pow(adam.beta1, t), left2 = 1 - std::pow(adam.beta2, t);
    const double factor = (4.5 * t + 11) * u + 0x1p-53 * (1 / left1 + 0.5 / left2);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      magnitude[i] = adam.beta1 * magnitude[i] + (1 - adam.beta1) * std::abs(grads[i]);
      const double denominator = std::sqrt(adam.variance[i] / left2) + adam.eps;
      const double moved = adam.lr / left1 * magnitude[i] / denominator;
      error[i] += 1.01 * (3 * u * std::max(std::abs(before[i]), std::abs(weights[i])));
      error[i] += 1.01 * factor * moved;
    }
  }
  double momentum_error(std::size_t i) const {
    return 1.01 * (3 * adam.steps + 1) * u * magnitude[i];
  }
  double variance_error(std::size_t i) const {
    return 1.01 * (3 * adam.steps + 3) * u * adam.variance[i];
  }

  ReferenceAdam adam;
  std::vector<double> weights, error;
  std::vector<double> magnitude;  // the momentum of the gradients' magnitudes
  double u;
};

void check_close(const Slice& slice, const Bounded& expected) {
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    INFO("element ", i, " after ", expected.adam.steps, " steps");
    const double weight = element(slice.weights.view(), i);
    CHECK(std::abs(weight - expected.weights[i]) <= expected.error[i]);
    const double momentum = element(slice.momentum.view(), i);
    CHECK(std::abs(momentum - expected.adam.momentum[i]) <= expected.momentum_error(i));
    const double variance = element(slice.variance.view(), i);
    CHECK(std::abs(variance - expected.adam.variance[i]) <= expected.variance_error(i));
  }
}

/// What PyTorch was given: 8 weights, and gradients that fp32 holds exactly, by closed formulas.
constexpr int torch_size = 8;
double torch_weight(int i) {
  return (2 * i - 7) / 8.0;
}
double torch_gradient(int t, int i) {
  return ((7 * i + 3 * t) % 11 - 5) / 4.0;
}

struct TorchRun {
  double weight_decay;
  double after_1[torch_size], after_100[torch_size];
};

// PyTorch 1.13.1, in double, by this script:
//
//   import torch
//   def run(optimizer, **options):
//       w = torch.tensor([(2 * i - 7) / 8 for i in range(8)],
//                        dtype=torch.float64, requires_grad=True)
//       adam = optimizer([w], lr=2e-3, **options)
//       for t in range(1, 101):
//           w.grad = torch.tensor([((7 * i + 3 * t) % 11 - 5) / 4 for i in range(8)],
//                                 dtype=torch.float64)
//           adam.step()
//           if t in (1, 100):
//               print(t, w.tolist())
//       state = adam.state[w]
//       print(state["exp_avg"].tolist(), state["exp_avg_sq"].tolist())
//   run(torch.optim.Adam)
//   run(torch.optim.AdamW, weight_decay=0.1)
constexpr TorchRun torch_runs[] = {{0,
                                    {-0.87300000004,
                                     -0.626999999984,
                                     -0.37699999992,
                                     -0.12300000002666667,
                                     0.12300000002,
                                     0.375,
                                     0.62699999998,
                                     0.8730000000266667},
                                    {-0.874254963111571,
                                     -0.6279886456825488,
                                     -0.38129061402805725,
                                     -0.11766429573673509,
                                     0.12131138428654319,
                                     0.37550640229306226,
                                     0.6298901662148971,
                                     0.8749442332824648}},
                                   {0.1,
                                    {-0.87282500004,
                                     -0.6268749999840001,
                                     -0.37692499992,
                                     -0.12297500002666667,
                                     0.12297500002,
                                     0.374925,
                                     0.6268749999800001,
                                     0.8728250000266666},
                                    {-0.8569446494753596,
                                     -0.6155533174038942,
                                     -0.3737442250527997,
                                     -0.11532670036118171,
                                     0.11890462257876637,
                                     0.36806991744064615,
                                     0.617422001954306,
                                     0.8576123313373039}}};
// The same in both runs: the moments do not know of weight decay.
constexpr double torch_momentum[] = {-0.08469765136826601,
                                     0.11221027870673507,
                                     -0.05122655816149506,
                                     0.025985930661200654,
                                     0.05389543361968224,
                                     0.023389329699997154,
                                     -0.05149676588217471,
                                     0.09605039672999742};
constexpr double torch_variance[] = {0.05918294119298052,
                                     0.060389404384283134,
                                     0.05896006021500912,
                                     0.059477777250033684,
                                     0.0598445506455995,
                                     0.05890935389003217,
                                     0.05987991394784018,
                                     0.05941294453614214};

std::vector<double> torch_weights() {
  std::vector<double> weights;
  for (int i = 0; i < torch_size; ++i) weights.push_back(torch_weight(i));
  return weights;
}

std::vector<double> torch_gradients(int t) {
  std::vector<double> grads;
  for (int i = 0; i < torch_size; ++i) grads.push_back(torch_gradient(t, i));
  return grads;
}

/// A gradient of step t: of every size from 2^-10 to 2^10, one in eight 0.
float gradient(int t, std::int64_t i) {
  const Generator random(9, RandomStream::inputs);
  const auto index = static_cast<std::uint64_t>(t) << 32 | static_cast<std::uint64_t>(i);
  if (i % 8 == 5) return 0;
  return std::ldexp(random.uniform(index), static_cast<int>(i % 21) - 10);
}

void fill_gradients(const Slice& slice, int t) {
  fill(slice.grads.view(), [t](std::int64_t i) { return gradient(t, i); });
}

void fill_weights(const Slice& slice) {
  const Generator random(9, RandomStream::weights);
  fill(slice.weights.view(), [&](std::int64_t i) { return random.uniform(i); });
}

/// One parameter of weight 1, updated with each of the gradients; its weight after each step.
std::vector<float> path_of(const Options& options, const std::vector<float>& gradients) {
  Stream stream("test");
  Adam adam(options, stream);
  const Slice slice(Dtype::fp32, 1);
  fill(slice.weights.view(), [](std::int64_t) { return 1; });
  std::vector<float> path;
  for (const float g : gradients) {
    fill(slice.grads.view(), [g](std::int64_t) { return g; });
    adam.begin(1);
    adam.update(slice.slice(), slice.grads.view(), slice.params());
    path.push_back(element(slice.weights.view(), 0));
  }
  return path;
}

}  // namespace

TEST_CASE("the reference gives PyTorch's numbers") {
  for (const TorchRun& run : torch_runs) {
    Bounded reference(options_with(run.weight_decay), torch_weights(), 0x1p-53);
    for (int t = 1; t <= 100; ++t) {
      reference.update(torch_gradients(t));
      if (t != 1 && t != 100) continue;
      const double* theirs = t == 1 ? run.after_1 : run.after_100;
      for (int i = 0; i < torch_size; ++i) {
        INFO("element ", i, " after ", t, " steps");
        // Both are in double, each within the bound of the exact result.
        CHECK(std::abs(reference.weights[i] - theirs[i]) <= 2 * reference.error[i]);
      }
    }
    for (int i = 0; i < torch_size; ++i) {
      const double m = reference.adam.momentum[i], v = reference.adam.variance[i];
      CHECK(std::abs(m - torch_momentum[i]) <= 2 * reference.momentum_error(i));
      CHECK(std::abs(v - torch_variance[i]) <= 2 * reference.variance_error(i));
    }
  }
}

TEST_CASE("Adam gives PyTorch's numbers, in fp32, after 1 and after 100 steps") {
  for (const TorchRun& run : torch_runs) {
    const Options options = options_with(run.weight_decay);
    Stream stream("test");
    Adam adam(options, stream);
    const Slice slice(Dtype::fp32, torch_size);
    fill(slice.weights.view(), [](std::int64_t i) { return torch_weight(static_cast<int>(i)); });
    Bounded bound(options, torch_weights(), 0x1p-24);
    for (int t = 1; t <= 100; ++t) {
      const std::vector<double> grads = torch_gradients(t);
      fill(slice.grads.view(), [&](std::int64_t i) { return grads[i]; });
      adam.begin(1);
      adam.update(slice.slice(), slice.grads.view(), slice.params());
      bound.update(grads);
      if (t != 1 && t != 100) continue;
      const double* theirs = t == 1 ? run.after_1 : run.after_100;
      for (int i = 0; i < torch_size; ++i) {
        INFO("element ", i, " after ", t, " steps");
        CHECK(std::abs(element(slice.weights.view(), i) - theirs[i]) <= bound.error[i]);
        CHECK(bound.error[i] < 2e-5);  // 0.01 learning rates: tight enough to tell mistakes
      }
    }
    for (int i = 0; i < torch_size; ++i) {
      const double m = element(slice.momentum.view(), i), v = element(slice.variance.view(), i);
      CHECK(std::abs(m - torch_momentum[i]) <= bound.momentum_error(i));
      CHECK(std::abs(v - torch_variance[i]) <= bound.variance_error(i));
    }
  }
}

TEST_CASE("Adam is within its rounding errors of the formulas, over 100 steps, in every dtype") {
  constexpr std::int64_t size = 200;
  constexpr float grad_factor = 0.37f;  // as of a clipped step
  for (const Dtype dtype : dtypes) {
    for (const double weight_decay : {0.0, 0.3}) {
      INFO(std::string(name_of(dtype)), ", weight decay ", weight_decay);
      Options options = options_with(weight_decay);
      options.beta1 = 0.8;
      options.beta2 = 0.95;
      options.eps = 1e-4;
      Stream stream("test");
      Adam adam(options, stream);
      const Slice slice(dtype, size);
      fill_weights(slice);
      std::vector<double> initial(size), grads(size);
      for (std::int64_t i = 0; i < size; ++i) initial[i] = element(slice.weights.view(), i);
      Bounded expected(options, initial, 0x1p-24);
      for (int t = 1; t <= 100; ++t) {
        fill_gradients(slice, t);
        for (std::int64_t i = 0; i < size; ++i) {
          grads[i] = static_cast<double>(element(slice.grads.view(), i)) * grad_factor;
        }
        adam.begin(grad_factor);
        adam.update(slice.slice(), slice.grads.view(), slice.params());
        expected.update(grads);
        if (t == 1 || t == 100) check_close(slice, expected);
      }
      for (std::int64_t i = 0; i < size; ++i) {
        const float weight = element(slice.weights.view(), i);
        CHECK(element(slice.params(), i) == rounded(dtype, weight));
      }
    }
  }
}

TEST_CASE("the first step moves by the learning rate, whatever the gradient's size") {
  // lr g / (|g| + eps): eps / |g| is at most 1e-5 here. Rounding: the weight, 1, to 2^-24 three
  // times, the update to 16 times 2^-24 of itself (see Bounded).
  constexpr double lr = 2e-3;
  constexpr double tolerance = lr * (1e-5 + 16 * 0x1p-24) + 3 * 0x1p-24;
  for (const float g : {1e-3f, 1.0f, 1000.0f, -1e-3f, -1000.0f}) {
    const float moved = path_of(options_with(0), {g})[0] - 1;
    CHECK(std::abs(moved + std::copysign(lr, g)) <= tolerance);
  }
}

TEST_CASE("the moments persist: a gradient moves the weight in the step after it too") {
  const std::vector<float> path = path_of(options_with(0), {1, 0});
  // m = 0.9 * 0.1, v = 0.999 * 0.001, corrected by 1 - 0.81 and 1 - 0.998001.
  const double expected = 2e-3 * (0.09 / 0.19) / std::sqrt(0.000999 / 0.001999);
  // eps is 1e-8 of about 1; rounding as in Bounded, t = 2.
  const double tolerance = expected * (2e-8 + 20 * 0x1p-24) + 6 * 0x1p-24;
  CHECK(std::abs((path[0] - path[1]) - expected) <= tolerance);
}

TEST_CASE("a step that is not begun does not count") {
  // The bias corrections know how many steps there were: begun ones, whatever happened between.
  Stream stream("test");
  const auto after = [&](int begun_before) {
    Adam adam(options_with(0), stream);
    const Slice slice(Dtype::fp32, 1);
    fill(slice.grads.view(), [](std::int64_t) { return 1; });
    for (int i = 0; i <= begun_before; ++i) adam.begin(1);
    adam.update(slice.slice(), slice.grads.view(), slice.params());
    return element(slice.weights.view(), 0);
  };
  // From weight 0: eps is 1e-8 of the root, roundings are (4.5 t + 11) 2^-24 of the update.
  constexpr double share = 2 * 1e-8 + 25 * 0x1p-24;
  CHECK(std::abs(after(0) + 2e-3) <= share * 2e-3);
  // As if the t-th step of a run with zero gradients before: 0.1 / (1 - 0.9^t) of lr and so on.
  const double third = 2e-3 * 0.1 / (1 - 0.729) / std::sqrt(0.001 / (1 - std::pow(0.999, 3)));
  CHECK(std::abs(after(2) + third) <= share * third);
}

TEST_CASE("any cut of the vector gives the same bits") {
  constexpr std::int64_t size = 1000;
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Stream stream("test");
    Adam whole_adam(options_with(0.1), stream), cut_adam(options_with(0.1), stream);
    const Slice whole(dtype, size), cut(dtype, size);
    fill_weights(whole);
    fill_weights(cut);
    for (int t = 1; t <= 10; ++t) {
      fill_gradients(whole, t);
      fill_gradients(cut, t);
      whole_adam.begin(0.7f);
      whole_adam.update(whole.slice(), whole.grads.view(), whole.params());
      cut_adam.begin(0.7f);
      // Cuts of 1, 2, 3, ... elements: none is aligned, most are no multiple of a vector.
      for (std::int64_t first = 0, count = 1; first < size; first += count++) {
        count = std::min(count, size - first);
        cut_adam.update(cut.slice(first, count),
                        cut.grads.view().part(first, count),
                        cut.params().part(first, count));
      }
    }
    CHECK(whole.state() == cut.state());
  }
}

TEST_CASE_TEMPLATE("wide vectors give the bits of narrow ones", T, float, Bf16, Fp16) {
  // Where a machine has none the same loop runs twice.
  constexpr std::int64_t size = 1003;
  const Dtype dtype = std::is_same_v<T, float>  ? Dtype::fp32
                      : std::is_same_v<T, Bf16> ? Dtype::bf16
                                                : Dtype::fp16;
  const AdamScalars scalars{0.7f, 0.9f, 0.1f, 0.999f, 0.001f, 0.9998f, 0.02f, 30.0f, 1e-8f};
  const Slice narrow_ones(dtype, size), wide_ones(dtype, size);
  const auto arrays_of = [](const Slice& slice) {
    return AdamArrays<T>{size,
                         slice.grads.view().as<T>().data(),
                         slice.weights.view().as<float>().data(),
                         slice.momentum.view().as<float>().data(),
                         slice.variance.view().as<float>().data(),
                         slice.narrow_params.size() ? slice.params().as<T>().data() : nullptr};
  };
  fill_weights(narrow_ones);
  fill_weights(wide_ones);
  for (int t = 1; t <= 3; ++t) {
    fill_gradients(narrow_ones, t);
    fill_gradients(wide_ones, t);
    adam_loop(scalars, arrays_of(narrow_ones));
    if (!adam_loop_on_wide_vectors(scalars, arrays_of(wide_ones))) {
      adam_loop(scalars, arrays_of(wide_ones));
    }
  }
  CHECK(narrow_ones.state() == wide_ones.state());
}

TEST_CASE("the factor multiplies each gradient, once, in fp32") {
  constexpr std::int64_t size = 100;
  constexpr float factor = 1.0f / 3 / 1024;
  for (const Dtype dtype : dtypes) {
    Stream stream("test");
    Adam factor_adam(options_with(0), stream), plain_adam(options_with(0), stream);
    const Slice scaled(dtype, size), plain(Dtype::fp32, size);
    for (int t = 1; t <= 3; ++t) {
      fill_gradients(scaled, t);
      const View grads = scaled.grads.view();
      fill(plain.grads.view(), [&](std::int64_t i) { return element(grads, i) * factor; });
      factor_adam.begin(factor);
      factor_adam.update(scaled.slice(), grads, scaled.params());
      plain_adam.begin(1);
      plain_adam.update(plain.slice(), plain.grads.view(), plain.params());
    }
    CHECK(bits(scaled.weights.view()) == bits(plain.weights.view()));
    CHECK(bits(scaled.variance.view()) == bits(plain.variance.view()));
  }
}

TEST_CASE("weights move where 16-bit parameters alone would stand still") {
  // Steps of a learning rate of 1e-4 from 1: the next lower bf16 is 2^-8 away, the next fp16
  // 2^-11, and less than half of that is rounded away.
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    INFO(std::string(name_of(dtype)));
    Options options = options_with(0);
    options.lr = 1e-4;
    Stream stream("test");
    Adam adam(options, stream);
    const Slice slice(dtype, 1);
    fill(slice.weights.view(), [](std::int64_t) { return 1; });
    fill(slice.grads.view(), [](std::int64_t) { return 1; });
    float alone = 1;
    int steps_at_one = 0;
    for (int t = 1; t <= 40; ++t) {
      adam.begin(1);
      adam.update(slice.slice(), slice.grads.view(), slice.params());
      steps_at_one += element(slice.params(), 0) == 1;
      alone = rounded(dtype, alone - 1e-4f);
    }
    CHECK(alone == 1);
    CHECK(steps_at_one > 0);
    CHECK(steps_at_one < 40);
    CHECK(element(slice.params(), 0) == rounded(dtype, element(slice.weights.view(), 0)));
    // Equal gradients: every step is lr, to (4.5 t + 11) 2^-24 < 2e-5 of it (see Bounded) and three
    // roundings of the weight.
    const double moved = 1 - element(slice.weights.view(), 0);
    CHECK(std::abs(moved - 40 * 1e-4) <= 40 * (2e-5 * 1e-4 + 3 * 0x1p-24));
  }
}

TEST_CASE("padding stays zero") {
  for (const Dtype dtype : dtypes) {
    Stream stream("test");
    Adam adam(options_with(0.1), stream);
    const Slice slice(dtype, 16);
    for (int t = 1; t <= 3; ++t) {
      adam.begin(1);
      adam.update(slice.slice(), slice.grads.view(), slice.params());
    }
    for (const auto& part : slice.state()) CHECK(part == std::vector<std::uint32_t>(16, 0));
  }
}

TEST_CASE("an update put on a stream keeps the scalars of its step") {
  using namespace std::chrono_literals;
  const auto two_steps = [](Stream::Mode mode) {
    Stream stream("late", mode);
    Adam adam(options_with(0), stream);
    const Slice slice(Dtype::fp32, 4);
    fill(slice.grads.view(), [](std::int64_t i) { return i + 1; });
    adam.begin(1);
    adam.update(slice.slice(), slice.grads.view(), slice.params());
    adam.begin(0.25f);  // before the first update has run, on a worker that is late
    adam.update(slice.slice(), slice.grads.view(), slice.params());
    stream.synchronise();
    return slice.state();
  };
  const auto at_once = two_steps(Stream::Mode::inline_);
  Stream::delay_for_tests("late", 10ms);
  const auto later = two_steps(Stream::Mode::worker);
  Stream::delay_for_tests("late", 0ms);
  CHECK(at_once == later);
}

TEST_CASE_TEMPLATE("vectors of any width give the same bits", T, float, Bf16, Fp16) {
  constexpr std::int64_t count = 1000 + 7;  // not a multiple of any width
  const Generator random(3, RandomStream::inputs);
  struct State {
    std::vector<float> weights, momentum, variance;
    std::vector<T> params;
  };
  State narrow_state, wide_state;
  std::vector<T> grads;
  for (std::int64_t i = 0; i < count; ++i) {
    grads.push_back(narrow<T>(random.uniform(4 * i)));
    narrow_state.weights.push_back(random.uniform(4 * i + 1));
    narrow_state.momentum.push_back(random.uniform(4 * i + 2));
    narrow_state.variance.push_back(std::abs(random.uniform(4 * i + 3)));
  }
  narrow_state.params.resize(count);
  wide_state = narrow_state;
  const auto arrays = [&](State& s) {
    return AdamArrays<T>{count,
                         grads.data(),
                         s.weights.data(),
                         s.momentum.data(),
                         s.variance.data(),
                         s.params.data()};
  };
  const AdamScalars scalars{0.5f, 0.9f, 0.1f, 0.999f, 0.001f, 0.99f, 2e-3f, 1.5f, 1e-8f};
  adam_loop(scalars, arrays(narrow_state));
  if (!adam_loop_on_wide_vectors(scalars, arrays(wide_state))) return;  // this machine has none
  const auto same = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
  };
  CHECK(same(narrow_state.weights, wide_state.weights));
  CHECK(same(narrow_state.momentum, wide_state.momentum));
  CHECK(same(narrow_state.variance, wide_state.variance));
  CHECK(same(narrow_state.params, wide_state.params));
}

TEST_CASE("views of different sizes are refused") {
  Stream stream("test");
  Adam adam(options_with(0), stream);
  const Slice slice(Dtype::bf16, 8), other(Dtype::bf16, 9);
  adam.begin(1);
  CHECK_THROWS_AS(adam.update(slice.slice(), other.grads.view(), slice.params()), std::logic_error);
  CHECK_THROWS_AS(adam.update(slice.slice(), slice.grads.view(), other.params()), std::logic_error);
  AdamSlice mixed = slice.slice();
  mixed.momentum = other.slice().momentum;
  CHECK_THROWS_AS(adam.update(mixed, slice.grads.view(), slice.params()), std::logic_error);
  mixed = slice.slice();
  mixed.variance = other.slice().variance;
  CHECK_THROWS_AS(adam.update(mixed, slice.grads.view(), slice.params()), std::logic_error);
}

}  // namespace zero::test
