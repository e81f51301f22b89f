// SPDX-License-Identifier: MIT
// The model against the reference in double: exactly where every number is small enough to be
// exact, within derived bounds elsewhere; and the reference against differences of its own loss.
#include "train/mlp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config.hpp"
#include "memory/layout.hpp"
#include "tests/ranks/reference_model.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {

namespace {

/// A model with its parameters and a place for its gradients, padded as for three ranks.
struct Net {
  explicit Net(const Options& options)
      : options(options),
        stream("test"),
        model(options, stream),
        layout(model.sizes(), 0, 3),
        params(Kind::parameters, options.dtype, layout.full_size()),
        grads(Kind::gradients, options.dtype, layout.full_size()) {
    fill(params.view(), [](std::int64_t) { return 1; });  // must not survive, padding included
    fill(grads.view(), [](std::int64_t) { return 1; });
    for (int l = 0; l < layout.layers(); ++l) {
      model.initialise(l, layout.layer(params, l), layout.layer_start(l));
    }
  }

  /// Forward only; returns the mean loss.
  double forward(const Batch& batch, float scale = 1) {
    Sums sums;
    model.load(batch);
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, layout.layer(params, l));
    model.loss(scale, sums);
    return sums.totals.loss;
  }

  void backward(const Tensor& into, Write write) {
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, layout.layer(params, l), layout.layer(into, l), add);
    }
  }

  /// What the parameters are, widened.
  ReferenceModel reference() const {
    ReferenceModel same{architecture(options), {}};
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = layout.layer(params, l);
      Numbers numbers;
      for (std::int64_t i = 0; i < layer.used; ++i) numbers.push_back(element(layer, i));
      same.params.push_back(numbers);
    }
    return same;
  }

  Options options;
  Stream stream;
  Mlp model;
  Layout layout;
  Tensor params, grads;
};

/// Calls f(gradient element, l, i) for all of a net's; checks that the padding is zero.
void for_each_gradient(const Net& net, const Tensor& grads, auto f) {
  for (int l = 0; l < net.layout.layers(); ++l) {
    const View layer = net.layout.layer(grads, l);
    for (std::int64_t i = 0; i < layer.used; ++i) f(element(layer, i), l, i);
    for (std::int64_t i = layer.used; i < layer.size; ++i) CHECK(element(layer, i) == 0);
  }
}

Options small(Task task, Dtype dtype = Dtype::fp32, int layers = 3) {
  Options options;
  options.task = task;
  options.dtype = dtype;
  options.data = default_corpus;
  options.batch = 5;
  options.width = task == Task::text ? 16 : 9;
  options.layers = layers;
  options.seed = 5;
  return options;
}

/// The samples as the model sees them: inputs rounded to its type.
Samples stored_samples(const Net& net, const Batch& batch) {
  Samples samples =
      samples_of(*batch.data, architecture(net.options), batch.first, net.options.batch);
  for (double& x : samples.inputs) {
    x = rounded(net.options.dtype, static_cast<float>(x));
  }
  return samples;
}

Numbers magnitudes(Numbers numbers) {
  for (double& x : numbers) x = std::abs(x);
  return numbers;
}

/// How far a model's loss and gradients may be from the reference's.
///
/// Activations, and gradients for a given d loss / d outputs, are sums of products of inputs,
/// weights and that delta. If each product passes through at most `narrow` roundings to the storage
/// type (of roundoff U) and `wide` roundings to fp32 (u), whatever the order of the sums, the error
/// is at most (1 + U)^narrow (1 + u)^wide - 1, the growth, times the same sum of the products'
/// magnitudes: what the reference gives for magnitudes, without ReLU. (Underflow comes on top, not
/// met here: fp16 is left to exact numbers.)
class Bound {
 public:
  Bound(const ReferenceModel& model, const Samples& samples, Dtype dtype)
      : model_(model),
        samples_(samples),
        dtype_(dtype),
        outputs_(model.forward(samples.inputs).back()),
        absolute_(model) {
    absolute_.architecture.relu = false;
    for (Numbers& layer : absolute_.params) layer = magnitudes(layer);
    activations_ = absolute_.forward(magnitudes(samples.inputs));
    model.architecture.classifier ? bound_cross_entropy() : bound_squared_error();
  }

  /// The smallest distance of a value before a ReLU from zero, over how far it may be off: above 1
  /// all values lie on the same side in both models, as the bounds assume.
  double safety_of_kinks() const {
    double least = HUGE_VAL;
    if (!model_.architecture.relu) return least;
    const Layers real = model_.forward(samples_.inputs);
    for (int l = 0; l + 1 < model_.architecture.layers(); ++l) {
      const Numbers before = model_.linear(l, real[l]);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const double off = growth_forward(l + 1) * activations_[l + 1][i];
        least = std::min(least, std::abs(before[i]) / off);
      }
    }
    return least;
  }

  double loss() const { return loss_; }
  const Layers& gradients() const { return gradients_; }

 private:
  static constexpr double u = 0x1p-24;

  double growth(double wide, double narrow) const {
    return std::expm1(wide * std::log1p(u) + narrow * std::log1p(unit_roundoff(dtype_)));
  }

  /// Of the outputs of the first `layers` layers: sums of inputs + 1 terms, stored once each.
  double growth_forward(int layers) const {
    double wide = 0;
    for (int l = 0; l < layers; ++l) wide += static_cast<double>(model_.architecture.widths[l] + 1);
    return growth(wide, layers);
  }

  /// Of the gradients: forward; then the delta, stored; sums of outputs terms, stored; the sum over
  /// the batch, stored.
  double growth_back() const {
    const int layers = model_.architecture.layers();
    auto wide = static_cast<double>(model_.batch_of(samples_));
    for (const std::int64_t width : model_.architecture.widths) {
      wide += 2 * static_cast<double>(width) + 1;
    }
    return growth(wide, 2 * layers + 2);
  }

  /// The difference y - t is taken once in fp32 and squared in double; the delta is rounded twice
  /// more (its factor, the product). y is a sum of products as above, t is exact.
  void bound_squared_error() {
    const auto count = static_cast<double>(outputs_.size());
    Numbers delta;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const double magnitude = activations_.back()[i] + std::abs(samples_.targets[i]);
      const double error = (growth_forward(model_.architecture.layers()) + u) * magnitude;
      loss_ += (2 * std::abs(outputs_[i] - samples_.targets[i]) + error) * error / count;
      delta.push_back(2 * magnitude / count);
    }
    gradients_ = absolute_.backward(activations_, delta);
    for (Numbers& layer : gradients_) {
      for (double& g : layer) g *= std::expm1(std::log1p(growth_back()) + 3 * std::log1p(u));
    }
  }

  /// With outputs off by at most e, and numbers z - max of at most r, rounded: each exp is off by a
  /// factor of exp(2 e + u r) and 4 u for the library; its sum over c classes by c u more, the
  /// quotient by u. So p is off by a factor of at most 1 + off. p - target, the factor and the
  /// product are rounded; the rest is as above, for this error and for the delta's magnitude.
  void bound_cross_entropy() {
    const auto classes = static_cast<std::size_t>(model_.architecture.widths.back());
    const auto batch = static_cast<double>(samples_.targets.size());
    const Numbers exact = model_.loss_gradient(outputs_, samples_.targets);
    const double forward = growth_forward(model_.architecture.layers());
    Numbers errors, magnitude;
    for (std::size_t s = 0; s < samples_.targets.size(); ++s) {
      const auto row = std::span(outputs_).subspan(s * classes, classes);
      const auto sums = std::span(activations_.back()).subspan(s * classes, classes);
      const double e = forward * *std::max_element(sums.begin(), sums.end());
      const auto [least, most] = std::minmax_element(row.begin(), row.end());
      const double range = *most - *least + 2 * e;
      const double each = 2 * e + u * range + 4 * u;
      const double off = std::expm1(2 * each + static_cast<double>(classes + 1) * u);
      const Numbers probabilities = ReferenceModel::softmax(row);
      for (std::size_t j = 0; j < classes; ++j) {
        const double delta = std::abs(exact[s * classes + j]);
        errors.push_back(off * probabilities[j] / batch + 3 * u * (delta + off / batch));
        magnitude.push_back(delta + errors.back());
      }
      // log(sum) + max - z: the sum's factor, the outputs' errors, 4 roundings of numbers no larger
      // than these.
      const double numbers = std::log(static_cast<double>(classes)) + range + std::abs(*most) + e;
      loss_ += (off + 2 * e + 4 * u * 2 * numbers) / batch;
    }
    const Layers propagated = absolute_.backward(activations_, errors);
    gradients_ = absolute_.backward(activations_, magnitude);
    for (std::size_t l = 0; l < gradients_.size(); ++l) {
      for (std::size_t i = 0; i < gradients_[l].size(); ++i) {
        gradients_[l][i] = growth_back() * gradients_[l][i] + propagated[l][i];
      }
    }
  }

  const ReferenceModel& model_;
  const Samples& samples_;
  Dtype dtype_;
  Numbers outputs_;
  ReferenceModel absolute_;
  Layers activations_;  // of magnitudes
  double loss_ = 0;
  Layers gradients_;
};

/// Only one weight in 64 is not zero, so that the magnitudes in a bound add up to little.
void make_sparse(Net& net) {
  for (int l = 0; l < net.layout.layers(); ++l) {
    const View layer = net.layout.layer(net.params, l);
    const std::int64_t inputs = architecture(net.options).widths[l];
    fill(layer, [&, old = bits(layer)](std::int64_t at) {
      const bool kept = (at / inputs + 3 * (at % inputs)) % 64 == 0;
      return kept ? std::bit_cast<float>(old[at]) : 0.0f;
    });
  }
}

/// `largest_bound`: a share of the largest gradient. A bound as large as what it bounds would let
/// anything pass.
void check_against_reference(const Options& options,
                             double largest_bound,
                             const std::function<void(Net&)>& change = nullptr) {
  INFO(std::string(name_of(options.task)), ", ", std::string(name_of(options.dtype)));
  INFO(options.layers, " layers");
  Net net(options);
  if (change) change(net);
  const auto data = make_data(options);
  const Batch batch = (*data)(3, 0);
  const ReferenceModel reference = net.reference();
  const Samples samples = stored_samples(net, batch);
  const ReferenceModel::Result expected = reference.loss_and_gradients(samples);
  const Bound bound(reference, samples, options.dtype);
  REQUIRE(bound.safety_of_kinks() > 1);

  const double loss = net.forward(batch);
  net.backward(net.grads, false);
  CHECK(std::abs(loss - expected.loss) <= bound.loss());
  double most = 0, least_certain = 0;
  for_each_gradient(net, net.grads, [&](float gradient, int l, std::int64_t i) {
    const double wanted = expected.gradients[l][i];
    most = std::max(most, std::abs(wanted));
    least_certain = std::max(least_certain, bound.gradients()[l][i]);
    if (std::abs(gradient - wanted) <= bound.gradients()[l][i]) return;
    FAIL_CHECK("layer ", l, ", element ", i, ": ", gradient, ", expected ", wanted);
  });
  CHECK(least_certain < largest_bound * most);
}

/// Inputs and targets in -1 .. 1 and -3 .. 3; on request with another first input.
class SmallIntegers : public Data {
 public:
  explicit SmallIntegers(const Options& options, std::optional<float> first_input = std::nullopt)
      : Data(options, 0, 1),
        rows_(options.batch),
        first_input_(first_input) {}
  void load(Kernels&, std::int64_t first, View inputs, View targets) const override {
    const std::int64_t width = inputs.size / rows_, outputs = targets.size / rows_;
    fill(inputs, [&](std::int64_t at) {
      const std::int64_t index = first + at / width, i = at % width;
      if (first_input_ && i == 0) return *first_input_;
      return static_cast<float>((index * 5 + i * 4) % 3) - 1;
    });
    fill(targets, [&](std::int64_t at) {
      const std::int64_t index = first + at / outputs, o = at % outputs;
      return static_cast<float>((index + 2 * o) % 7) - 3;
    });
  }

 private:
  std::int64_t rows_;
  std::optional<float> first_input_;
};

/// Two weights of +-1 in each row and each column, and biases in -1 .. 1.
void make_small_integers(Net& net) {
  const std::int64_t width = net.options.width;
  for (int l = 0; l < net.layout.layers(); ++l) {
    fill(net.layout.layer(net.params, l), [&](std::int64_t at) -> double {
      if (at >= width * (width + 1)) return 0;
      if (at >= width * width) return at % 3 - 1.0;
      const std::int64_t o = at / width, i = at % width;
      if (i != o && i != (o + 1) % width) return 0;
      return (o + i / 2 + l) % 2 == 0 ? 1 : -1;
    });
  }
}

/// A loss's derivative by one parameter, from the loss at +-step, and how far it may be off.
struct Difference {
  double derivative, error;
};

/// Between the two losses no value crosses a ReLU's kink, or NaN comes back. Then all outputs are
/// linear in the parameter. A squared error is a parabola in it, and the central difference exact.
/// Cross-entropy is log-sum-exp of them, whose third derivative is at most range^3 (a third central
/// moment of the outputs' slopes), so the difference is off by step^2 / 6 of that. The rounding of
/// either loss, 2^-53 for each of n operations on numbers that add up to at most `magnitude`, is
/// divided by the step.
Difference central_difference(ReferenceModel model, const Samples& samples, int l, std::size_t i) {
  const double step = model.architecture.classifier ? 1e-5 : 1e-3;
  double& parameter = model.params[l][i];
  const double middle = parameter;
  parameter = middle + step;
  const Layers high = model.forward(samples.inputs);
  parameter = middle - step;
  const Layers low = model.forward(samples.inputs);
  for (int k = 1; model.architecture.relu && k < model.architecture.layers(); ++k) {
    for (std::size_t n = 0; n < high[k].size(); ++n) {
      if ((high[k][n] > 0) != (low[k][n] > 0)) return {NAN, 0};
    }
  }
  const double up = model.loss(high.back(), samples.targets);
  const double down = model.loss(low.back(), samples.targets);
  double slope = 0, magnitude = std::abs(up) + std::abs(down);
  for (std::size_t n = 0; n < high.back().size(); ++n) {
    slope = std::max(slope, std::abs(high.back()[n] - low.back()[n]) / (2 * step));
    magnitude = std::max(magnitude, std::pow(high.back()[n], 2));
  }
  const double curvature = model.architecture.classifier ? std::pow(2 * slope, 3) : 0;
  double operations = static_cast<double>(samples.inputs.size() + high.back().size());
  for (const Numbers& layer : model.params) operations += static_cast<double>(layer.size());
  return {(up - down) / (2 * step),
          step * step / 6 * curvature + operations * 0x1p-53 * magnitude / step};
}

}  // namespace

TEST_CASE("the reference's gradients are the slopes of its loss") {
  for (const Task task : {Task::text, Task::toy, Task::mlp}) {
    INFO(std::string(name_of(task)));
    const Options options = small(task);
    const ReferenceModel model{architecture(options),
                               initial_params(architecture(options), options.seed)};
    const Samples samples = samples_of(*make_data(options), model.architecture, 0, options.batch);
    const Layers gradients = model.loss_and_gradients(samples).gradients;
    int compared = 0;
    for (int l = 0; l < model.architecture.layers(); ++l) {
      const std::size_t size = gradients[l].size();
      for (const std::size_t i : {std::size_t{0}, size / 3, size / 2, size - 2, size - 1}) {
        const Difference difference = central_difference(model, samples, l, i);
        if (std::isnan(difference.derivative)) continue;
        ++compared;
        CHECK(std::abs(difference.derivative - gradients[l][i]) <= difference.error);
        CHECK(difference.error < 1e-4);  // gradients here are some 0.01
      }
    }
    CHECK(compared >= 3 * model.architecture.layers());
  }
}

TEST_CASE("small integers come out exactly, in every dtype, loss scale included") {
  for (const Dtype dtype : dtypes) {
    for (const float scale : {1.0f, 128.0f}) {
      INFO(std::string(name_of(dtype)), ", loss scale ", scale);
      Options options = small(Task::mlp, dtype);
      options.width = 8;
      options.batch = 4;
      Net net(options);
      make_small_integers(net);
      const SmallIntegers data(options);
      const ReferenceModel reference = net.reference();
      const Samples samples = samples_of(data, reference.architecture, 0, options.batch);
      const ReferenceModel::Result expected = reference.loss_and_gradients(samples);
      // 32 numbers to average, so factors are powers of two; outputs are at most 15, deltas at most
      // 4 * 18 in units of theirs: 8 bits hold them. The gradients, sums of these, are exact in
      // fp32 and then rounded once.
      CHECK(net.forward(data(0, 0), scale) == expected.loss);
      net.backward(net.grads, false);
      int zeros = 0;
      for_each_gradient(net, net.grads, [&](float gradient, int l, std::int64_t i) {
        const auto formed = static_cast<float>(expected.gradients[l][i] * scale);
        CHECK(gradient == rounded(dtype, formed));
        zeros += gradient == 0;
      });
      CHECK(zeros < net.layout.parameters() / 2);
    }
  }
}

TEST_CASE("losses and gradients of the three tasks are those of the reference") {
  check_against_reference(small(Task::text), 1e-3);
  check_against_reference(small(Task::mlp), 1e-3);
  check_against_reference(small(Task::mlp, Dtype::fp32, 1), 1e-3);
  check_against_reference(small(Task::toy), 0.05);
  check_against_reference(small(Task::toy), 1e-3, make_sparse);
  check_against_reference(small(Task::toy, Dtype::bf16), 0.5, make_sparse);
  // Without a ReLU between layers, so that rounding to 8 bits takes nothing across a kink.
  check_against_reference(small(Task::text, Dtype::bf16, 1), 0.5);
  check_against_reference(small(Task::mlp, Dtype::bf16, 1), 0.5);
}

TEST_CASE("gradients are formed, rounded, and only then added, and padding is zero") {
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Net net(small(Task::mlp, dtype));
    const auto data = make_data(net.options);
    const Tensor first(Kind::gradients, dtype, net.layout.full_size());
    const Tensor second(Kind::gradients, dtype, net.layout.full_size());
    fill(first.view(), [](std::int64_t) { return 1; });
    net.forward((*data)(0, 0));
    net.backward(first, false);
    net.forward((*data)(1, 0));
    net.backward(second, false);
    const Layers exact =
        net.reference().loss_and_gradients(stored_samples(net, (*data)(1, 0))).gradients;

    net.forward((*data)(0, 0));
    net.backward(net.grads, false);
    fill(net.layout.layer(net.grads, 0).part(net.layout.layer(net.grads, 0).used, 1),
         [](std::int64_t) { return NAN; });  // padding is put to zero, not added to
    net.forward((*data)(1, 0));
    net.backward(net.grads, true);
    int told_apart = 0;
    for_each_gradient(net, net.grads, [&](float sum, int l, std::int64_t i) {
      const float a = element(net.layout.layer(first, l), i);
      const float b = element(net.layout.layer(second, l), i);
      CHECK(sum == rounded(dtype, a + b));
      told_apart += sum != rounded(dtype, static_cast<float>(a + exact[l][i]));
    });
    // Adding before rounding would give other numbers here: this test sees the difference.
    if (dtype != Dtype::fp32) CHECK(told_apart > 0);
  }
}

TEST_CASE("initial weights are the note's, by global element number, whoever asks for which part") {
  for (const Task task : {Task::text, Task::toy, Task::mlp}) {
    for (const Dtype dtype : dtypes) {
      const Net net(small(task, dtype));
      const Layers expected = initial_params(architecture(net.options), net.options.seed);
      for_each_gradient(net, net.params, [&](float weight, int l, std::int64_t i) {
        CHECK(weight == rounded(dtype, static_cast<float>(expected[l][i])));
      });
      const int last = net.layout.layers() - 1;
      const View whole = net.layout.layer(net.params, last);
      const Tensor part(Kind::parameters, dtype, whole.size / 3);
      for (int rank = 0; rank < 3; ++rank) {
        const std::int64_t first = rank * part.size();
        net.model.initialise(last, part.view(), net.layout.layer_start(last), first);
        CHECK(bits(part.view()) == bits(whole.part(first, part.size())));
      }
    }
  }
}

TEST_CASE("activations are borrowed from forward to backward, as many bytes as the formula says") {
  for (const Task task : {Task::text, Task::toy, Task::mlp}) {
    for (const Dtype dtype : dtypes) {
      const KindBytes before = ledger().of(Kind::activations);
      const KindBytes panel_before = ledger().of(Kind::workspace);
      Net net(small(task, dtype));
      const auto data = make_data(net.options);
      const KindBytes& now = ledger().of(Kind::activations);
      const std::int64_t bytes = architecture(net.options).activation_bytes(5, dtype);
      CHECK(now.reserved - before.reserved == bytes);
      CHECK(now.now == before.now);
      for (int step = 0; step < 2; ++step) {
        ledger().restart_peaks();
        net.forward((*data)(step, 0));
        CHECK(now.now - before.now == bytes);
        net.forward((*data)(step, 0));  // nothing is borrowed twice
        net.backward(net.grads, false);
        CHECK(now.now == before.now);
        CHECK(now.peak - before.now == bytes);
        CHECK(now.resident == before.resident);
        CHECK(ledger().of(Kind::workspace).peak - panel_before.now ==
              4 * panel_elements(Device::cpu));
      }
    }
  }
}

TEST_CASE("the architectures of the tasks, and the bytes of their activations") {
  Options options;
  options.width = 16;
  options.layers = 3;
  options.task = Task::text;
  CHECK(architecture(options).widths == std::vector<std::int64_t>{16, 16, 16, 256});
  CHECK(architecture(options).sizes() == std::vector<std::int64_t>{272, 272, 4352});
  CHECK(architecture(options).targets() == 1);
  // batch x (16 + 16 + 16 + 256 and twice the largest, 256) x 2 bytes
  CHECK(architecture(options).activation_bytes(3, Dtype::bf16) == 3 * (304 + 512) * 2);
  options.task = Task::mlp;
  CHECK(architecture(options).sizes() == std::vector<std::int64_t>{272, 272, 272});
  CHECK(architecture(options).targets() == 16);
  options.task = Task::toy;
  CHECK(architecture(options).sizes() == std::vector<std::int64_t>{65536, 5120});
  CHECK(architecture(options).activation_bytes(1, Dtype::fp32) == (650 + 1024) * 4);
}

TEST_CASE("what is not finite comes through to the loss and the gradients") {
  for (const Dtype dtype : dtypes) {
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Net net(small(Task::mlp, dtype));
      const SmallIntegers data(net.options, value);
      CHECK(!std::isfinite(net.forward(data(0, 0))));
      net.backward(net.grads, false);
      int bad = 0;
      for_each_gradient(
          net, net.grads, [&](float g, int, std::int64_t) { bad += !std::isfinite(g); });
      CHECK(bad > 0);
    }
  }
}

TEST_CASE("a ReLU cuts off minus infinity like any negative number") {
  Options options = small(Task::mlp, Dtype::fp32, 2);
  options.width = options.batch = 1;
  Net net(options);
  // One number: the first layer negates it, the second hands it on.
  fill(net.layout.layer(net.params, 0), [](std::int64_t at) { return at == 0 ? -1 : 0; });
  fill(net.layout.layer(net.params, 1), [](std::int64_t at) { return at == 0 ? 1 : 0; });
  CHECK(net.forward(SmallIntegers(options, INFINITY)(0, 0)) == 9);  // (0 - -3)^2
}

}  // namespace zero::test
