// SPDX-License-Identifier: MIT
// Compares Adam with the papers' formulas in double, and with PyTorch's numbers. Adam must give the
// same bits however its vector of parameters is cut into parts.
#include "train/adam.hpp"

#include <cmath>

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using Bits = std::vector<std::uint32_t>;

Options options_with(double weight_decay) { return {.lr = 2e-3, .weight_decay = weight_decay}; }

/// An Adam, with the state and the gradients of `size` parameters. `dtype` is that of gradients and
/// parameters: in 16 bit parameters are a rounded copy of the fp32 weights, in fp32 the weights.
struct Run {
  const Options options;
  const Dtype dtype;
  const std::int64_t size;
  Stream stream{"adam", cpu()};
  Adam adam{options, stream};
  Tensor weights = state(), momentum = state(), variance = state();
  Tensor grads{cpu(), Kind::gradients, dtype, size};
  Tensor copy{cpu(), Kind::parameters, dtype, needs_master(dtype) ? size : 0};

  Tensor state() const { return Tensor(cpu(), Kind::optimizer, Dtype::fp32, size); }
  View params() { return copy.size() ? copy.view() : weights.view(); }
  void update(std::int64_t first, std::int64_t count) {
    const auto part = [=](View view) { return view.part(first, count); };
    adam.update({part(weights.view()), part(momentum.view()), part(variance.view()),
                 needs_master(dtype) ? part(copy.view()) : View{}},
                part(grads.view()));
  }
  void step(float grad_factor = 1) {
    adam.begin(grad_factor);
    update(0, size);
  }
  std::vector<Bits> written() {
    return {bits(weights.view()), bits(momentum.view()), bits(variance.view()), bits(params())};
  }
};

/// Adam in plain double, as the papers write it: Kingma and Ba (2015), Algorithm 1, with the
/// decoupled weight decay of Loshchilov and Hutter (2019). It also bounds how far the results of an
/// Adam whose arithmetic has unit roundoff u may be from the exact ones.
///
/// After t steps each term of the momentum has passed at most 3 t + 1 roundings (the gradient, the
/// constant, the product, the sum; then a constant, a product and a sum a step), so it is off by at
/// most (3 t + 1) u times the sum of the terms' magnitudes. The variance has positive terms only:
/// off by a factor of 1 + (3 t + 3) u. Its root halves that; with the root itself, the correction
/// (constant and product) and eps (constant and sum) the denominator is off by (1.5 t + 6.5) u.
/// With the step size (constant and product) and the quotient, the update is off by
/// (4.5 t + 11) u times its magnitude, or less; it is subtracted from the decayed weight (constant,
/// product, sum). 1 - beta^t is formed in double from a product of t factors, so it is off by
/// t 2^-53 / (1 - beta^t) of itself; beta2's root halves that. 1.01 covers products of errors.
struct Reference {
  void update(const std::vector<float>& grads, double grad_factor = 1) {
    const double lr = options.lr, beta1 = options.beta1, beta2 = options.beta2, t = ++steps;
    const double left1 = 1 - std::pow(beta1, t), left2 = 1 - std::pow(beta2, t);
    const double factor = (4.5 * t + 11) * u + 0x1p-53 * t * (1 / left1 + 0.5 / left2);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double before = weights[i], gradient = grads[i] * grad_factor;
      momentum[i] = beta1 * momentum[i] + (1 - beta1) * gradient;
      magnitude[i] = beta1 * magnitude[i] + (1 - beta1) * std::abs(gradient);
      variance[i] = beta2 * variance[i] + (1 - beta2) * gradient * gradient;
      const double denominator = std::sqrt(variance[i] / left2) + options.eps;
      weights[i] -= lr * options.weight_decay * weights[i];
      weights[i] -= lr * (momentum[i] / left1) / denominator;
      error[i] += 1.01 * (3 * u * std::max(std::abs(before), std::abs(weights[i])));
      error[i] += 1.01 * factor * (lr / left1 * magnitude[i] / denominator);
    }
  }
  double momentum_error(std::size_t i) const { return 1.01 * (3 * steps + 1) * u * magnitude[i]; }
  double variance_error(std::size_t i) const { return 1.01 * (3 * steps + 3) * u * variance[i]; }

  const Options options;
  const double u;
  std::vector<double> weights;
  const std::vector<double> zeros = std::vector<double>(weights.size());
  std::vector<double> error = zeros, momentum = zeros, variance = zeros;
  std::vector<double> magnitude = zeros;  // the same mean as `momentum`, of |gradient|
  int steps = 0;
};

// The first 4 of 8 weights after 1 and after 100 steps of PyTorch 1.13.1, in double, lr=2e-3: by
// Adam, and by AdamW with weight_decay=0.1. Weight i begins at (2 i - 7) / 8; its gradient in step
// t is ((7 i + 3 t) % 11 - 5) / 4.
struct TorchRun {
  double weight_decay, after_1[4], after_100[4];
};
constexpr TorchRun torch_runs[] = {
    {0,
     {-0.87300000004, -0.626999999984, -0.37699999992, -0.12300000002666667},
     {-0.874254963111571, -0.6279886456825488, -0.38129061402805725, -0.11766429573673509}},
    {0.1,
     {-0.87282500004, -0.6268749999840001, -0.37692499992, -0.12297500002666667},
     {-0.8569446494753596, -0.6155533174038942, -0.3737442250527997, -0.11532670036118171}}};

/// Gradients of step t: from [-1, 1), times 2^-10 to 2^10; every eighth gradient is 0.
void fill_gradients(Run& run, int t) {
  const Generator random(9, RandomStream::inputs);
  fill(run.grads.view(), [&](std::int64_t i) {
    const float x = random.uniform((std::int64_t{t} << 32) + i);
    return i % 8 == 5 ? 0 : std::ldexp(x, static_cast<int>(i % 21) - 10);
  });
}
void fill_weights(Run& run) {
  const Generator random(9, RandomStream::weights);
  fill(run.weights.view(), [&](std::int64_t i) { return random.uniform(i); });
}
}  // namespace

TEST_CASE("one element: its weight moves, and both moments are there for the next step") {
  float weight = 1, momentum = 0, variance = 0;
  const AdamScalars scalars = {1, 0.5f, 0.5f, 0.75f, 0.25f, 1, 0.5f, 1, 0};
  adam_element(scalars, 2, weight, momentum, variance);
  const auto told = [](float moment) -> std::string {
    return moment == 0 ? "forgotten: write to the reference, not to a copy" : "not the formula's";
  };
  CHECK_MESSAGE(weight < 1, "the weight is not written: is the body empty?");
  CHECK_MESSAGE(momentum == 1, "the momentum is ", told(momentum));
  CHECK_MESSAGE(variance == 1, "the variance is ", told(variance));
}

TEST_CASE("Adam and the reference give PyTorch's numbers after 1 and after 100 steps") {
  const std::vector<double> weights = {-7 / 8.0, -5 / 8.0, -3 / 8.0, -1 / 8.0};  // exact in fp32
  for (const TorchRun& torch : torch_runs) {
    const Options options = options_with(torch.weight_decay);
    Run run{options, Dtype::fp32, 4};
    fill(run.weights.view(), [&](std::int64_t i) { return weights[i]; });
    // PyTorch and `reference` compute in double, Adam in fp32. The result of each is off the exact
    // one by at most its bound: so PyTorch's and `reference`'s differ by at most two bounds.
    Reference reference{options, 0x1p-53, weights}, bound{options, 0x1p-24, weights};
    for (int t = 1; t <= 100; ++t) {
      fill(run.grads.view(), [=](std::int64_t i) { return ((7 * i + 3 * t) % 11 - 5) / 4.0; });
      run.step();
      for (Reference* each : {&reference, &bound}) each->update(values(run.grads.view()));
      for (int i = 0; i < 4 && (t == 1 || t == 100); ++i) {
        INFO("element ", i, " after ", t, " steps");
        const double theirs = t == 1 ? torch.after_1[i] : torch.after_100[i];
        CHECK(std::abs(reference.weights[i] - theirs) <= 2 * reference.error[i]);
        CHECK(std::abs(element(run.weights.view(), i) - theirs) <= bound.error[i]);
        CHECK(bound.error[i] < 2e-5);  // 1 % of lr: a mistake is larger
      }
    }
  }
}

TEST_CASE("Adam is within its rounding errors of the formulas, over 100 steps, in every dtype") {
  constexpr std::int64_t size = 200;
  constexpr float grad_factor = 0.37f;  // as in a clipped step
  for (const Dtype dtype : dtypes) {
    for (const double weight_decay : {0.0, 0.3}) {
      INFO(std::string(name_of(dtype)), ", decay ", weight_decay);
      Options options = options_with(weight_decay);
      options.beta1 = 0.8, options.beta2 = 0.95, options.eps = 1e-4;
      Run run{options, dtype, size};
      fill_weights(run);
      const std::vector<float> initial = values(run.weights.view());
      Reference expected{options, 0x1p-24, {initial.begin(), initial.end()}};
      for (int t = 1; t <= 100; ++t) {
        fill_gradients(run, t);
        run.step(grad_factor);
        expected.update(values(run.grads.view()), grad_factor);
        for (std::int64_t i = 0; i < size; ++i) {
          INFO("element ", i, " after ", t, " steps");
          const double w = element(run.weights.view(), i);
          const double m = element(run.momentum.view(), i), v = element(run.variance.view(), i);
          CHECK(std::abs(w - expected.weights[i]) <= expected.error[i]);
          CHECK(std::abs(m - expected.momentum[i]) <= expected.momentum_error(i));
          CHECK(std::abs(v - expected.variance[i]) <= expected.variance_error(i));
        }
      }
      for (std::int64_t i = 0; i < size; ++i) {
        CHECK(element(run.params(), i) == rounded(dtype, element(run.weights.view(), i)));
      }
    }
  }
}

TEST_CASE("any cut of the vector gives the same bits") {
  constexpr std::int64_t size = 2500;  // the CPU's blocks have 1024 elements
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Run whole{options_with(0.1), dtype, size}, cut{options_with(0.1), dtype, size};
    for (Run* each : {&whole, &cut}) fill_weights(*each);
    for (int t = 1; t <= 10; ++t) {
      for (Run* each : {&whole, &cut}) fill_gradients(*each, t);
      whole.step(0.7f);
      cut.adam.begin(0.7f);
      // Parts of 1, 2, 3, ... elements: few begin aligned, or fill their vector registers.
      for (std::int64_t first = 0, count = 1; first < size; first += count++) {
        count = std::min(count, size - first);
        cut.update(first, count);
      }
    }
    CHECK(whole.written() == cut.written());
  }
}

TEST_CASE("padding stays zero") {
  Run run{options_with(0.1), Dtype::bf16, 16};
  for (int t = 1; t <= 3; ++t) run.step();
  CHECK(run.written() == std::vector<Bits>(4, Bits(16, 0)));
}

TEST_CASE("views of different sizes and dtypes are refused") {
  Run run{options_with(0), Dtype::bf16, 8};
  const View weights = run.weights.view(), half = run.copy.view(), nine{nullptr, 9, 9, Dtype::bf16};
  for (const auto& [slice, grads] : {std::pair{AdamState{weights, weights, weights}, nine},
                                     {{weights, weights, weights, nine}, half},
                                     {{weights, weights, weights, weights}, half},
                                     {{half, weights, weights, half}, half}}) {
    CHECK_THROWS_AS(run.adam.update(slice, grads), std::logic_error);
  }
}
}  // namespace zero::test
