// SPDX-License-Identifier: MIT
// The model against the reference, within its intervals; and the reference against differences of
// its own loss.
#include "train/mlp.hpp"

#include "config.hpp"
#include "memory/state.hpp"
#include "tests/unit/checks.hpp"
#include "tests/unit/reference_model.hpp"

namespace zero::test {
namespace {
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
    model.loss(scale, sums);
    return sums.totals.loss;
  }

  void backward(Write write = Write::over) {
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

  /// Those elements, widened.
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
  return {.task = task,
          .data = DEFAULT_CORPUS,
          .batch = 5,
          .width = task == Task::text ? 16 : 9,
          .layers = layers,
          .seed = 5,
          .dtype = dtype};
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
    const auto formed = [&](int step, Write write = Write::over) {
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
