// SPDX-License-Identifier: MIT
// The model against the reference in double: exactly where every number is small enough to be
// exact, within derived bounds elsewhere; and the reference against differences of its own loss.
#include "train/mlp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "config.hpp"
#include "memory/layout.hpp"
#include "tests/ranks/reference_model.hpp"
#include "tests/unit/books.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {

namespace {

constexpr Task tasks[] = {Task::text, Task::toy, Task::mlp};

/// A model with its parameters and a place for its gradients, padded as for three ranks.
struct Net {
  explicit Net(const Options& options)
      : options(options),
        stream("test", Device::cpu),
        model(options, stream),
        layout(model_of().sizes(), 0, 3),
        params(Device::cpu, Kind::parameters, options.dtype, layout.full_size()),
        grads(Device::cpu, Kind::gradients, options.dtype, layout.full_size()) {
    fill(params.view(), [](std::int64_t) { return 1; });  // must not survive, padding included
    fill(grads.view(), [](std::int64_t) { return 1; });
    for (int l = 0; l < layout.layers(); ++l) model.initialise(l, layout.layer(params, l));
  }

  Architecture model_of() const { return architecture(options); }

  /// Forward only; returns the mean loss.
  double forward(const Batch& batch, float scale = 1) {
    Sums sums(Device::cpu);
    model.load(batch);
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, layout.layer(params, l));
    model.loss(scale, sums);
    return sums.totals.loss;
  }

  void backward(Write write = Write::over) {
    for (int l = layout.layers(); l-- > 0;) {
      model.backward(l, layout.layer(params, l), layout.layer(grads, l), write);
    }
  }

  /// Calls f(element, l, i) for all elements of a tensor but the padding, which must be zero.
  void for_each(const Tensor& tensor, auto f) const {
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = layout.layer(tensor, l);
      for (std::int64_t i = 0; i < layer.used; ++i) f(element(layer, i), l, i);
      for (std::int64_t i = layer.used; i < layer.size; ++i) CHECK(element(layer, i) == 0);
    }
  }

  /// What the parameters are, widened.
  ReferenceModel reference() const {
    ReferenceModel same{model_of(), Layers(layout.layers())};
    for_each(params, [&](float x, int l, std::int64_t) { same.params[l].push_back(x); });
    return same;
  }

  /// The samples as the model sees them: inputs rounded to its type.
  Samples samples(const Batch& batch) const {
    Samples samples = samples_of(*batch.data, model_of(), batch.first, options.batch);
    for (double& x : samples.inputs) x = rounded(options.dtype, static_cast<float>(x));
    return samples;
  }

  Options options;
  Stream stream;
  Mlp model;
  Layout layout;
  Tensor params, grads;
};

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
struct Bound {
  double loss = 0;
  Layers gradients;
  /// The smallest distance of a value before a ReLU from zero, over how far it may be off: above 1
  /// all values lie on the same side in both models, as the bounds assume.
  double safety_of_kinks = HUGE_VAL;

  Bound(const ReferenceModel& model, const Samples& samples, Dtype dtype) {
    const Architecture& shape = model.architecture;
    const auto growth = [&](std::int64_t wide, int narrow) {
      return std::expm1(static_cast<double>(wide) * std::log1p(u) +
                        narrow * std::log1p(unit_roundoff(dtype)));
    };
    ReferenceModel absolute = model;
    absolute.architecture.relu = false;
    for (Numbers& layer : absolute.params) layer = magnitudes(layer);
    const Layers real = model.forward(samples.inputs);
    const Layers sums = absolute.forward(magnitudes(samples.inputs));
    // Each layer forms sums of inputs + 1 terms and stores them once.
    std::int64_t wide = 0;
    Numbers off;  // of the outputs
    for (int l = 0; l < shape.layers(); ++l) {
      wide += shape.widths[l] + 1;
      off = sums[l + 1];
      for (double& sum : off) sum *= growth(wide, l + 1);
      if (!shape.relu || l + 1 == shape.layers()) continue;
      const Numbers before = model.linear(l, real[l]);
      for (std::size_t i = 0; i < off.size(); ++i) {
        safety_of_kinks = std::min(safety_of_kinks, std::abs(before[i]) / off[i]);
      }
    }
    const Numbers error = shape.classifier ? cross_entropy(model, real.back(), samples.targets, off)
                                           : squared_error(real.back(), samples.targets, off);
    Numbers delta = magnitudes(model.loss_gradient(real.back(), samples.targets));
    for (std::size_t i = 0; i < delta.size(); ++i) delta[i] += error[i];
    // Back come the delta, stored; sums of outputs terms, stored; the sum over the batch, stored.
    wide = model.batch_of(samples);
    for (const std::int64_t width : shape.widths) wide += 2 * width + 1;
    gradients = absolute.backward(sums, delta);
    const Layers propagated = absolute.backward(sums, error);
    for (std::size_t l = 0; l < gradients.size(); ++l) {
      for (std::size_t i = 0; i < gradients[l].size(); ++i) {
        gradients[l][i] = growth(wide, 2 * shape.layers() + 2) * gradients[l][i] + propagated[l][i];
      }
    }
  }

 private:
  static constexpr double u = 0x1p-24;

  /// Of the delta, before it is stored. y - t is rounded in fp32, and squared in double; its factor
  /// and their product are rounded too.
  Numbers squared_error(const Numbers& outputs, const Numbers& targets, const Numbers& off) {
    const auto count = static_cast<double>(outputs.size());
    Numbers errors;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const double difference = std::abs(outputs[i] - targets[i]);
      const double error = off[i] + u * (difference + off[i]);
      loss += (2 * difference + error) * error / count;
      errors.push_back(2 / count * (error + 3 * u * (difference + error)));
    }
    return errors;
  }

  /// The same. With outputs off by at most e, and numbers z - max of at most r, rounded: each exp
  /// is off by a factor of exp(2 e + u r) and 4 u for the library; its sum over c classes by c u
  /// more, the quotient by u. So p is off by a factor of at most 1 + ratio. p - target, the factor
  /// and the product are rounded.
  Numbers cross_entropy(const ReferenceModel& model,
                        const Numbers& outputs,
                        const Numbers& targets,
                        const Numbers& off) {
    const auto classes = static_cast<std::size_t>(model.architecture.widths.back());
    const auto batch = static_cast<double>(targets.size());
    const Numbers exact = model.loss_gradient(outputs, targets);
    Numbers errors;
    for (std::size_t first = 0; first < outputs.size(); first += classes) {
      const auto row = std::span(outputs).subspan(first, classes);
      const double e = *std::max_element(&off[first], &off[first] + classes);
      const auto [least, most] = std::minmax_element(row.begin(), row.end());
      const double range = *most - *least + 2 * e;
      const double terms = static_cast<double>(classes) + 9;
      const double ratio = std::expm1(4 * e + u * (2 * range + terms));
      const Numbers probabilities = ReferenceModel::softmax(row);
      for (std::size_t j = 0; j < classes; ++j) {
        const double delta = std::abs(exact[first + j]);
        errors.push_back(ratio * probabilities[j] / batch + 3 * u * (delta + ratio / batch));
      }
      // log(sum) + max - z: the sum's factor, the outputs' errors, 4 roundings of numbers no larger
      // than these.
      const double numbers = std::log(static_cast<double>(classes)) + range + std::abs(*most) + e;
      loss += (ratio + 2 * e + 4 * u * 2 * numbers) / batch;
    }
    return errors;
  }
};

/// Only one weight in 64 is not zero, so that the magnitudes in a bound add up to little.
void make_sparse(Net& net) {
  for (int l = 0; l < net.layout.layers(); ++l) {
    const View layer = net.layout.layer(net.params, l);
    const std::int64_t inputs = net.model_of().widths[l];
    fill(layer, [&, old = values(layer)](std::int64_t at) {
      return (at / inputs + 3 * (at % inputs)) % 64 == 0 ? old[at] : 0.0f;
    });
  }
}

/// `largest_bound`: a share of the largest gradient. A bound as large as what it bounds would let
/// anything pass.
void check_against_reference(const Options& options, double largest_bound, bool sparse = false) {
  INFO(std::string(name_of(options.task)), ", ", std::string(name_of(options.dtype)));
  INFO(options.layers, " layers");
  Net net(options);
  if (sparse) make_sparse(net);
  const auto data = make_data(options, Device::cpu);
  const Batch batch = (*data)(3, 0);
  const ReferenceModel reference = net.reference();
  const Samples samples = net.samples(batch);
  const ReferenceModel::Result expected = reference.loss_and_gradients(samples);
  const Bound bound(reference, samples, options.dtype);
  REQUIRE(bound.safety_of_kinks > 1);

  CHECK(std::abs(net.forward(batch) - expected.loss) <= bound.loss);
  net.backward();
  double most = 0, least_certain = 0;
  net.for_each(net.grads, [&](float gradient, int l, std::int64_t i) {
    const double wanted = expected.gradients[l][i];
    most = std::max(most, std::abs(wanted));
    least_certain = std::max(least_certain, bound.gradients[l][i]);
    if (std::abs(gradient - wanted) <= bound.gradients[l][i]) return;
    FAIL_CHECK("layer ", l, ", element ", i, ": ", gradient, ", expected ", wanted);
  });
  CHECK(least_certain < largest_bound * most);
}

/// Inputs and targets in -1 .. 1 and -3 .. 3, but for each sample's first input if that is told.
class SmallIntegers : public Data {
 public:
  explicit SmallIntegers(const Options& options, float first_input = 2)
      : Data(options, 0, 1),
        rows_(options.batch),
        first_input_(first_input) {}
  void load(Kernels&, std::int64_t first, View inputs, View targets) const override {
    const std::int64_t width = inputs.size / rows_, outputs = targets.size / rows_;
    fill(inputs, [&](std::int64_t at) {
      const std::int64_t index = first + at / width, i = at % width;
      if (first_input_ != 2 && i == 0) return first_input_;
      return static_cast<float>((index * 5 + i * 4) % 3) - 1;
    });
    fill(targets,
         [&](std::int64_t at) { return (first + at / outputs + 2 * (at % outputs)) % 7 - 3; });
  }

 private:
  std::int64_t rows_;
  float first_input_;
};

/// Two weights of +-1 in each row and each column, and biases in -1 .. 1.
void make_small_integers(Net& net) {
  const std::int64_t width = net.options.width;
  for (int l = 0; l < net.layout.layers(); ++l) {
    fill(net.layout.layer(net.params, l), [&](std::int64_t at) -> std::int64_t {
      if (at >= width * (width + 1)) return 0;
      if (at >= width * width) return at % 3 - 1;
      const std::int64_t o = at / width, i = at % width;
      if (i != o && i != (o + 1) % width) return 0;
      return (o + i / 2 + l) % 2 == 0 ? 1 : -1;
    });
  }
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
    const Architecture shape = architecture(options);
    const ReferenceModel model{shape, initial_params(shape, options.seed)};
    const Samples samples = samples_of(*make_data(options, Device::cpu), shape, 0, options.batch);
    const Layers gradients = model.loss_and_gradients(samples).gradients;
    const Generator direction(options.seed, RandomStream::codes);
    for (int l = 0; l < shape.layers(); ++l) {
      ReferenceModel high = model, low = model;
      double slope = 0;
      for (std::size_t i = 0; i < gradients[l].size(); ++i) {
        const double d = direction.uniform(i);
        high.params[l][i] += step * d;
        low.params[l][i] -= step * d;
        slope += gradients[l][i] * d;
      }
      const double rise =
          high.loss_and_gradients(samples).loss - low.loss_and_gradients(samples).loss;
      CHECK(std::abs(rise / (2 * step) - slope) < tolerance);
    }
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
      const auto expected = net.reference().loss_and_gradients(net.samples(data(0, 0)));
      // 32 numbers to average, so factors are powers of two; outputs are at most 15, deltas at most
      // 4 * 18 in units of theirs: 8 bits hold them. The gradients, sums of these, are exact in
      // fp32 and then rounded once.
      CHECK(net.forward(data(0, 0), scale) == expected.loss);
      net.backward();
      int zeros = 0;
      net.for_each(net.grads, [&](float gradient, int l, std::int64_t i) {
        CHECK(gradient == rounded(dtype, static_cast<float>(expected.gradients[l][i] * scale)));
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
  check_against_reference(small(Task::toy), 1e-3, true);
  check_against_reference(small(Task::toy, Dtype::bf16), 0.5, true);
  // Without a ReLU between layers, so that rounding to 8 bits takes nothing across a kink.
  check_against_reference(small(Task::text, Dtype::bf16, 1), 0.5);
  check_against_reference(small(Task::mlp, Dtype::bf16, 1), 0.5);
}

TEST_CASE("gradients are formed, rounded, and only then added, and padding is zero") {
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Net net(small(Task::mlp, dtype));
    const auto data = make_data(net.options, Device::cpu);
    const auto formed = [&](int step, Write write = Write::over) {
      net.forward((*data)(step, 0));
      net.backward(write);
      return values(net.grads.view());
    };
    const auto second = formed(1), first = formed(0);
    const Layers exact = net.reference().loss_and_gradients(net.samples((*data)(1, 0))).gradients;
    const View layer = net.layout.layer(net.grads, 0);
    fill(layer.part(layer.used, 1), [](std::int64_t) { return NAN; });  // put to zero, not added to
    formed(1, Write::add);
    int told_apart = 0;
    std::int64_t before = 0;  // elements of the layers before
    for (int l = 0; l < net.layout.layers(); before += net.layout.layer_size(l++)) {
      for (std::size_t i = 0; i < exact[l].size(); ++i) {
        const float sum = element(net.layout.layer(net.grads, l), i);
        CHECK(sum == rounded(dtype, first[before + i] + second[before + i]));
        const double other = first[before + i] + exact[l][i];
        told_apart += sum != rounded(dtype, static_cast<float>(other));
      }
    }
    net.for_each(net.grads, [](float, int, std::int64_t) {});  // looks at the padding
    // Adding before rounding would give other numbers here: this test sees the difference.
    if (dtype != Dtype::fp32) CHECK(told_apart > 0);
  }
}

TEST_CASE("initial weights are the note's, by global element number, whoever asks for which part") {
  for (const Task task : tasks) {
    for (const Dtype dtype : dtypes) {
      const Net net(small(task, dtype));
      const Layers expected = initial_params(net.model_of(), net.options.seed);
      net.for_each(net.params, [&](float weight, int l, std::int64_t i) {
        CHECK(weight == rounded(dtype, static_cast<float>(expected[l][i])));
      });
      for (int rank = 0; rank < 3; ++rank) {
        const Layout layout(net.model_of().sizes(), rank, 3);
        const Tensor shards(Device::cpu, Kind::parameters, dtype, layout.shard_size());
        for (int l = 0; l < layout.layers(); ++l) {
          const View shard = layout.shard(shards, l);
          net.model.initialise(l, shard);
          CHECK(bits(shard) == bits(layout.shard_of(layout.layer(net.params, l))));
        }
      }
    }
  }
}

TEST_CASE("activations are booked from forward to backward, as many bytes as the formula says") {
  for (const Task task : tasks) {
    for (const Dtype dtype : dtypes) {
      const Change activations(Kind::activations), workspace(Kind::workspace);
      Net net(small(task, dtype));
      const auto data = make_data(net.options, Device::cpu);
      const std::int64_t bytes = net.model_of().activation_bytes(5, dtype);
      const std::int64_t panel = 4 * panel_elements(Device::cpu);
      CHECK(activations.figures() == figures({bytes, 0, 0, 0}));
      for (int step = 0; step < 2; ++step) {
        ledger().restart_peaks();
        for (int times = 0; times < 2; ++times) {  // nothing is booked twice
          net.forward((*data)(step, 0));
          CHECK(activations.figures() == figures({bytes, 0, bytes, bytes}));
        }
        net.backward();
        CHECK(activations.figures() == figures({bytes, 0, 0, bytes}));
        CHECK(workspace.figures() == figures({panel, 0, 0, panel}));
      }
    }
  }
}

TEST_CASE("the architectures of the tasks, and the bytes of their activations") {
  using Numbers = std::vector<std::int64_t>;
  Options options;
  options.width = 16;
  options.layers = 3;
  options.task = Task::text;
  CHECK(architecture(options).widths == Numbers{16, 16, 16, 256});
  CHECK(architecture(options).sizes() == Numbers{272, 272, 4352});
  CHECK(architecture(options).targets() == 1);
  // batch x (16 + 16 + 16 + 256 and twice the largest, 256) x 2 bytes
  CHECK(architecture(options).activation_bytes(3, Dtype::bf16) == 3 * (304 + 512) * 2);
  options.task = Task::mlp;
  CHECK(architecture(options).sizes() == Numbers{272, 272, 272});
  CHECK(architecture(options).targets() == 16);
  options.task = Task::toy;
  CHECK(architecture(options).sizes() == Numbers{65536, 5120});
  CHECK(architecture(options).activation_bytes(1, Dtype::fp32) == (650 + 1024) * 4);
}

TEST_CASE("what is not finite comes through to the loss and the gradients") {
  for (const Dtype dtype : dtypes) {
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Net net(small(Task::mlp, dtype));
      const SmallIntegers data(net.options, value);
      CHECK(!std::isfinite(net.forward(data(0, 0))));
      net.backward();
      int bad = 0;
      net.for_each(net.grads, [&](float g, int, std::int64_t) { bad += !std::isfinite(g); });
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
