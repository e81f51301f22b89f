// SPDX-License-Identifier: MIT
// The model where numbers are large, not finite or added to others. That losses and gradients are
// right is tests/programs/digests_test.py's.
#include "train/mlp.hpp"

#include <algorithm>
#include <cmath>

#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// A model with its parameters and a place for its gradients, padded as for three ranks.
struct Net {
  explicit Net(Dtype dtype, int layers = 3)
      : options{.task = Task::mlp, .batch = 5, .width = 9, .layers = layers, .dtype = dtype} {
    for (const Replicated* each : {&params, &grads}) fill(each->view(), 1);  // must not survive
    for (int l = 0; l < layout.layers(); ++l) model.initialise(params.layer(l));
  }

  /// Of that step's batch, the mean loss.
  double forward(int step) {
    Sums sums(cpu());
    model.load((*data)(step, 0));
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, params.layer(l));
    model.loss(sums, 1);
    return sums.totals.loss;
  }

  /// All but the padding, which must be zero.
  std::vector<float> backward(Write write = Write::overwrite) {
    std::vector<float> all;
    for (int l = layout.layers(); l-- > 0;) {
      const View layer = grads.layer(l);
      model.backward(l, params.layer(l), layer, write);
      for (std::int64_t i = 0; i < layer.used; ++i) all.push_back(element(layer, i));
      for (std::int64_t i = layer.used; i < layer.size; ++i) CHECK(element(layer, i) == 0);
    }
    return all;
  }

  const Options options;
  const std::unique_ptr<Data> data = make_data(options, cpu());
  Stream stream{"test", cpu()};
  Model model{options, stream};
  const Layout layout{architecture(options).sizes(), 0, 3};
  const Replicated params{cpu(), layout, State::parameters, options.dtype};
  const Replicated grads{cpu(), layout, State::gradients, options.dtype};
};
}  // namespace

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
    CHECK(std::abs(sums.totals.loss - (far + std::log(2.0)) / 3) <= 0x1p-24 * far);
  }
}

TEST_CASE("gradients are formed, rounded, and only then added, and padding is zero") {
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Net net(dtype);
    const auto formed = [&](int step, Write write = Write::overwrite) {
      net.forward(step);
      return net.backward(write);
    };
    const std::vector<float> second = formed(1), first = formed(0);
    const View layer = net.grads.layer(0);
    fill(layer.part(layer.used, 1), NAN);  // put to zero, not added to
    const std::vector<float> sums = formed(1, Write::add);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      CHECK(sums[i] == rounded(dtype, first[i] + second[i]));
    }
  }
}

TEST_CASE("what is not finite comes through to the loss and the gradients") {
  for (const Dtype dtype : dtypes) {
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Net net(dtype);
      // A weight that meets inputs of either sign: some infinity is positive and passes the ReLU.
      fill(net.params.layer(0).part(0, 1), value);
      CHECK(!std::isfinite(net.forward(0)));
      CHECK(!std::ranges::all_of(net.backward(), [](float g) { return std::isfinite(g); }));
    }
  }
}

TEST_CASE("a ReLU cuts off minus infinity like any negative number") {
  Net net(Dtype::fp32, 2);
  const View first = net.params.layer(0), last = net.params.layer(1);
  fill(first.part(first.used - 1, 1), -INFINITY);  // a bias, whose number would go everywhere
  fill(last.part(0, last.used), 1);
  CHECK(std::isfinite(net.forward(0)));
}
}  // namespace zero::test
