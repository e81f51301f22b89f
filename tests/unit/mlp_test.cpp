// SPDX-License-Identifier: MIT
// The model against a reference, and that against differences of its own loss. The reference is the
// model once more, as the note on the generator says it: explicit loops, no matrix product, no
// stream. Of doubles it is the truth, of intervals it is where the real one's numbers may lie,
// which computes in fp32 and stores in the run's dtype.
#include "train/mlp.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "config.hpp"
#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using std::exp, std::log, std::max;
constexpr double u = 0x1p-24;  // what one rounding to fp32 moves a number by at most, of itself

/// From low to high, numbers of fp32. An operator is one operation of the program, rounded once:
/// rounding keeps order, so the rounded ends enclose the rounded result. A constant is rounded too.
struct Interval {
  Interval(double x = 0) : Interval(x, x) {}
  Interval(double low, double high)
      : low(static_cast<float>(low)), high(static_cast<float>(high)) {}
  double magnitude() const { return std::max(std::abs(low), std::abs(high)); }

  double low, high;
};

Interval operator+(Interval a, Interval b) { return {a.low + b.low, a.high + b.high}; }
Interval operator-(Interval a, Interval b) { return {a.low - b.high, a.high - b.low}; }
std::pair<double, double> exact_product(Interval a, Interval b) {
  return std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
}
Interval operator*(Interval a, Interval b) {
  const auto [low, high] = exact_product(a, b);
  return {low, high};
}
/// b is positive.
Interval operator/(Interval a, Interval b) {
  return {a.low / (a.low < 0 ? b.low : b.high), a.high / (a.high < 0 ? b.high : b.low)};
}
Interval max(Interval a, Interval b) { return {std::max(a.low, b.low), std::max(a.high, b.high)}; }
/// The program's are off by 2^-36 of themselves before they are rounded, the library's, of doubles,
/// by a ten thousandth of that.
constexpr double series_error = 0x1.001p-36;
Interval exp(Interval x) {
  return {std::exp(x.low) * (1 - series_error), std::exp(x.high) * (1 + series_error)};
}
Interval log(Interval x) {  // x: 1 or more
  return {std::log(x.low) * (1 - series_error), std::log(x.high) * (1 + series_error)};
}

/// x as it is stored; a double stays what it is.
double stored(double x, Dtype) { return x; }
Interval stored(Interval x, Dtype dtype) {
  return {rounded(dtype, static_cast<float>(x.low)), rounded(dtype, static_cast<float>(x.high))};
}

double where_positive(double x, double y) { return x > 0 ? y : 0; }
Interval where_positive(Interval x, Interval y) {
  if (x.high <= 0) return 0;
  return x.low > 0 ? y : Interval(std::min(y.low, 0.0), std::max(y.high, 0.0));
}

/// A sum of products: in double as exact as needed, in fp32 formed in whatever order. There a
/// product passes through at most as many roundings as there are products, so the sum is off by at
/// most so many u of the products' magnitudes; 1.01 covers the squares of u, and double.
template <class Number> struct Sum {
  void add(Number a, Number b) { sum += a * b; }
  Number total() const { return sum; }
  Number sum = 0;
};
template <> struct Sum<Interval> {
  void add(Interval a, Interval b) {
    const auto [least, most] = exact_product(a, b);
    low += least;
    high += most;
    magnitude += std::max(std::abs(least), std::abs(most));
    ++terms;
  }
  Interval total() const {
    if (magnitude == 0) return 0;
    const double off = terms * (1.01 * u * magnitude + 0x1p-126);  // may underflow
    return {low - off, high + off};
  }
  double low = 0, high = 0, magnitude = 0;
  int terms = 0;
};

using Layers = std::vector<std::vector<double>>;

template <class Number> struct ReferenceModel {
  using Vector = std::vector<Number>;
  using Vectors = std::vector<Vector>;

  Architecture architecture;
  Layers params;  // of each layer: the weight, outputs x inputs, row-major; then the bias
  Dtype dtype = Dtype::fp32;  // of the inputs; and in which intervals are stored
  double scale = 1;  // of the loss, in the gradients

  struct Result {
    Number loss;
    Vectors gradients;  // like params
  };

  Number store(Number x) const { return stored(x, dtype); }

  /// [l]: the inputs of layer l, batch x inputs; last come the outputs of the model.
  Vectors forward(const std::vector<float>& samples) const {
    Vectors activations(1);
    for (const float x : samples) activations[0].push_back(rounded(dtype, x));
    for (int l = 0; l < architecture.layers(); ++l) {
      const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
      const bool relu = architecture.relu && l + 1 < architecture.layers();
      const Vector& x = activations[l];
      Vector y;
      for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          Sum<Number> sum;
          for (std::int64_t i = 0; i < inputs; ++i) {
            sum.add(params[l][o * inputs + i], x[s * inputs + i]);
          }
          Number value = sum.total();
          if (architecture.bias) value = value + params[l][outputs * inputs + o];
          y.push_back(store(relu ? max(value, Number(0)) : value));
        }
      }
      activations.push_back(std::move(y));
    }
    return activations;
  }

  /// Cross-entropy of one sample's outputs, and delta: d loss / d outputs.
  Number cross_entropy(std::span<const Number> outputs, std::size_t target, Number factor,
                       Vector& delta) const {
    const Number largest = std::accumulate(outputs.begin(), outputs.end(), outputs[0],
                                           [](Number a, Number b) { return max(a, b); });
    Sum<Number> sum;
    for (const Number y : outputs) sum.add(exp(y - largest), 1);
    const Number all = sum.total();
    for (std::size_t c = 0; c < outputs.size(); ++c) {
      const Number probability = exp(outputs[c] - largest) / all;
      delta.push_back(store((probability - (c == target ? 1 : 0)) * factor));
    }
    return log(all) + largest - outputs[target];
  }

  /// Mean cross-entropy, or mean squared difference. delta becomes its gradient.
  Number loss(const Vector& outputs, const std::vector<float>& targets, Vector& delta) const {
    const auto count = static_cast<double>(targets.size());
    const std::size_t classes = outputs.size() / targets.size();
    const Number factor = scale / count;
    Sum<Number> sum;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (architecture.classifier) {
        const auto sample = std::span(outputs).subspan(t * classes, classes);
        sum.add(cross_entropy(sample, static_cast<std::size_t>(targets[t]), factor, delta), 1);
      } else {
        const Number difference = outputs[t] - targets[t];
        sum.add(difference, difference);
        delta.push_back(store(2 * difference * factor));
      }
    }
    return sum.total() / count;
  }

  /// d loss / d params, from what forward() returned and d loss / d outputs.
  Vectors backward(const Vectors& activations, Vector delta) const {
    Vectors gradients(architecture.layers());
    for (int l = architecture.layers(); l-- > 0;) {
      const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
      const Vector& x = activations[l];
      std::vector<Sum<Number>> gradient(architecture.size(l));
      std::vector<Sum<Number>> before(x.size());  // d loss / d x
      for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          const Number d = delta[s * outputs + o];
          for (std::int64_t i = 0; i < inputs; ++i) {
            gradient[o * inputs + i].add(d, x[s * inputs + i]);
            before[s * inputs + i].add(d, params[l][o * inputs + i]);
          }
          if (architecture.bias) gradient[outputs * inputs + o].add(d, 1);
        }
      }
      for (const auto& sum : gradient) gradients[l].push_back(store(sum.total()));
      delta.clear();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Number d = before[i].total();
        delta.push_back(store(architecture.relu ? where_positive(x[i], d) : d));
      }
    }
    return gradients;
  }

  Result loss_and_gradients(const LoadedSamples& samples) const {
    const Vectors activations = forward(samples.inputs);
    Vector delta;
    const Number mean = loss(activations.back(), samples.targets, delta);
    return {mean, backward(activations, delta)};
  }
};

constexpr Task tasks[] = {Task::text, Task::toy, Task::mlp};

/// A model with its parameters and a place for its gradients, padded as for three ranks.
struct Net {
  explicit Net(const Options& options) : options(options) {
    for (const Whole* each : {&params, &grads}) fill(each->view(), 1);  // must not survive
    for (int l = 0; l < layout.layers(); ++l) model.initialise(params.layer(l));
  }

  /// Forward only; returns the mean loss.
  double forward(const Batch& batch, float scale = 1) {
    Sums sums(cpu());
    model.load(batch);
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, params.layer(l));
    model.loss(sums, scale);
    return sums.totals.loss;
  }

  void backward(Write write = Write::overwrite) {
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, params.layer(l), grads.layer(l), write);
    }
  }

  /// Calls f(element, l, i) for all elements but the padding, which must be zero.
  void for_each(const Whole& whole, auto f) const {
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = whole.layer(l);
      for (std::int64_t i = 0; i < layer.used; ++i) f(element(layer, i), l, i);
      for (std::int64_t i = layer.used; i < layer.size; ++i) CHECK(element(layer, i) == 0);
    }
  }

  Layers layers(const Whole& whole) const {
    Layers all(layout.layers());
    for_each(whole, [&](float x, int l, std::int64_t) { all[l].push_back(x); });
    return all;
  }

  const Options options;
  const Architecture shape = architecture(options);
  Stream stream{"test", cpu()};
  Mlp model{options, stream};
  const Layout layout{shape.sizes(), 0, 3};
  const Whole params{cpu(), layout, State::parameters, options.dtype};
  const Whole grads{cpu(), layout, State::gradients, options.dtype};
};

Options small(Task task, Dtype dtype = Dtype::fp32, int layers = 3) {
  const int width = task == Task::text ? 16 : 9;
  Options o{.task = task, .data = DEFAULT_CORPUS, .batch = 5, .width = width, .layers = layers};
  o.seed = 5, o.dtype = dtype;
  return o;
}

void check_against_reference(const Options& options) {
  INFO(fmt::format("{}, {}, {} layers", name_of(options.task), name_of(options.dtype),
                   options.layers));
  Net net(options);
  const auto data = make_data(options, cpu());
  const Batch batch = (*data)(3, 0);
  constexpr float scale = 64;  // which the gradients have and the loss has not
  const ReferenceModel<Interval> model{net.shape, net.layers(net.params), options.dtype, scale};
  const auto expected =
      model.loss_and_gradients(load_samples(*data, net.shape, batch.first, options.batch));
  const double loss = net.forward(batch, scale);
  CHECK(expected.loss.low <= loss);
  CHECK(loss <= expected.loss.high);
  net.backward();
  double most = 0, widest = 0;
  net.for_each(net.grads, [&](float gradient, int l, std::int64_t i) {
    const Interval& wanted = expected.gradients[l][i];
    most = std::max(most, wanted.magnitude());
    widest = std::max(widest, wanted.high - wanted.low);
    if (wanted.low <= gradient && gradient <= wanted.high) return;
    FAIL_CHECK("layer ", l, ", element ", i, ": ", gradient, ", expected ", wanted.low, " to ",
               wanted.high);
  });
  // An interval as large as what lies in it would let anything pass.
  CHECK(widest < 0x1p-6 * most);
}
}  // namespace

TEST_CASE("the reference's gradients are the slopes of its loss") {
  // Of one layer at a time, along a random direction d: one wrong gradient shows as some 10^-3.
  // While no value crosses a ReLU's kink, as here, the outputs are linear in the step. A squared
  // error is a parabola then, and the central difference exact. Cross-entropy is log-sum-exp, whose
  // third derivative is at most the cube of the range, some 30, of the outputs' slopes: step^2 / 6
  // of that is 5 10^-9. Rounding of the losses, some 10^-15 each, over the step makes 10^-9.
  constexpr double step = 1e-6, tolerance = 1e-7;
  for (const Task task : tasks) {
    INFO(std::string(name_of(task)));
    const Options options = small(task);
    const Net net(options);
    const Architecture& shape = net.shape;
    const ReferenceModel<double> model{shape, net.layers(net.params)};
    const auto samples = load_samples(*make_data(options, cpu()), shape, 0, options.batch);
    const auto loss = [&](const ReferenceModel<double>& at) {
      return at.loss_and_gradients(samples).loss;
    };
    const Layers gradients = model.loss_and_gradients(samples).gradients;
    const Generator direction(options.seed, RandomStream::codes);
    for (int l = 0; l < shape.layers(); ++l) {
      ReferenceModel<double> high = model, low = model;
      double slope = 0;
      for (std::size_t i = 0; i < gradients[l].size(); ++i) {
        const double d = direction.uniform(i);
        high.params[l][i] += step * d;
        low.params[l][i] -= step * d;
        slope += gradients[l][i] * d;
      }
      CHECK(std::abs((loss(high) - loss(low)) / (2 * step) - slope) < tolerance);
    }
  }
}

TEST_CASE("losses and gradients of the three tasks are those of the reference") {
  for (const Dtype dtype : dtypes) {
    for (const Task task : tasks) check_against_reference(small(task, dtype));
    check_against_reference(small(Task::mlp, dtype, 1));
  }
}

TEST_CASE("cross-entropy of outputs that are far apart") {
  // 2^14 is one in every dtype, and no exponential of it in any.
  constexpr float far = 0x1p14f;
  constexpr float outputs[] = {0, far, -far, -far, -2 * far, -3 * far, far, far, 0};
  constexpr float deltas[] = {-1, 1, 0, 0, 0, 0, -0.5, 0.5, 0};
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    const Tensor y(cpu(), Kind::activations, dtype, 9), delta(cpu(), Kind::activations, dtype, 9);
    const Tensor targets(cpu(), Kind::data, Dtype::fp32, 3);  // 0 of each
    fill(y.view(), [&](std::int64_t i) { return outputs[i]; });
    Sums sums(cpu());
    make_kernels(cpu())->cross_entropy(y.view(), targets.view(), 3, 3, delta.view(), sums);
    CHECK(values(delta.view()) == std::vector<float>(std::begin(deltas), std::end(deltas)));
    // far, 0 and log 2, which lies beside far as it is added.
    CHECK(std::abs(sums.totals.loss - (far + std::log(2.0)) / 3) <= u * far);
  }
}

TEST_CASE("gradients are formed, rounded, and only then added, and padding is zero") {
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Net net(small(Task::mlp, dtype));
    const auto data = make_data(net.options, cpu());
    const auto formed = [&](int step, Write write = Write::overwrite) {
      net.forward((*data)(step, 0));
      net.backward(write);
      return net.layers(net.grads);
    };
    const Layers second = formed(1), first = formed(0);
    const View layer = net.grads.layer(0);
    fill(layer.part(layer.used, 1), NAN);  // put to zero, not added to
    formed(1, Write::add);
    net.for_each(net.grads, [&](float sum, int l, std::int64_t i) {
      CHECK(sum == rounded(dtype, static_cast<float>(first[l][i] + second[l][i])));
    });
  }
}

TEST_CASE("what is not finite comes through to the loss and the gradients") {
  for (const Dtype dtype : dtypes) {
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Net net(small(Task::mlp, dtype));
      // A weight that meets inputs of either sign: some infinity is positive and passes the ReLU.
      fill(net.params.layer(0).part(0, 1), value);
      CHECK(!std::isfinite(net.forward((*make_data(net.options, cpu()))(0, 0))));
      net.backward();
      int bad = 0;
      net.for_each(net.grads, [&](float g, int, std::int64_t) { bad += !std::isfinite(g); });
      CHECK(bad > 0);
    }
  }
}

TEST_CASE("a ReLU cuts off minus infinity like any negative number") {
  Net net(small(Task::mlp, Dtype::fp32, 2));
  const View first = net.params.layer(0), last = net.params.layer(1);
  fill(first.part(first.used - 1, 1), -INFINITY);  // a bias, whose number would go everywhere
  fill(last.part(0, last.used), 1);
  CHECK(std::isfinite(net.forward((*make_data(net.options, cpu()))(0, 0))));
}
}  // namespace zero::test
