// SPDX-License-Identifier: MIT
// The model with large numbers, and with numbers that are not finite. Losses and gradients are
// compared with NumPy's in tests/programs/digests_test.py.
#include "train/mlp.hpp"

#include <algorithm>
#include <cmath>

#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
struct Net {
  Net() {
    for (int l = 0; l < layout.layers(); ++l) model.initialise(params.layer(l));
  }

  /// Loads this step's batch. Returns its mean loss.
  double forward(int step) {
    Sums sums(cpu());
    model.load((*data)(step, 0));
    for (int l = 0; l < layout.layers(); ++l) model.forward(l, params.layer(l));
    model.loss(sums, 1);
    return sums.totals.loss;
  }

  const Options options{.task = Task::mlp, .batch = 5, .width = 9, .layers = 2};
  const std::unique_ptr<Data> data = make_data(options, cpu());
  Stream stream{"test", cpu()};
  Model model{options, stream};
  const Layout layout{architecture(options).sizes(), 0, 1};
  Replicated params{cpu(), layout, State::parameters, options.dtype};
};
}  // namespace

TEST_CASE("cross-entropy of outputs that are far apart") {
  // Every dtype can hold 2^14, and none can hold e^(2^14).
  constexpr float far = 0x1p14f;
  constexpr float outputs[] = {0, far, -far, -far, -2 * far, -3 * far, far, far, 0};
  constexpr float grad_outputs[] = {-1, 1, 0, 0, 0, 0, -0.5, 0.5, 0};
  for (const Dtype dtype : dtypes) {
    INFO(std::string(name_of(dtype)));
    Tensor y(cpu(), Kind::activations, dtype, 9), grad_output(cpu(), Kind::activations, dtype, 9);
    Tensor targets(cpu(), Kind::data, Dtype::fp32, 3);  // class 0 in each of three rows
    fill(y.view(), [&](std::int64_t i) { return outputs[i]; });
    Sums sums(cpu());
    make_kernels(cpu())->cross_entropy(y.view(), targets.view(), 3, 3, grad_output.view(), sums);
    CHECK(values(grad_output.view()) ==
          std::vector<float>(std::begin(grad_outputs), std::end(grad_outputs)));
    // The rows' losses are far, 0 and log 2. The last is log 2 + far - far in fp32, which rounds
    // log 2 to far's last bit.
    CHECK(std::abs(sums.totals.loss - (far + std::log(2.0)) / 3) <= 0x1p-24 * far);
  }
}

TEST_CASE("a parameter that is NaN makes the loss not finite") {
  Net net;
  fill(net.params.layer(0).part(0, 1), NAN);
  CHECK(!std::isfinite(net.forward(0)));
}

TEST_CASE("a ReLU cuts off minus infinity like any negative number") {
  Net net;
  const View first = net.params.layer(0), last = net.params.layer(1);
  fill(first.part(first.used - 1, 1), -INFINITY);  // a bias: without ReLU it reaches all outputs
  fill(last.part(0, last.used), 1);
  CHECK(std::isfinite(net.forward(0)));
}
}  // namespace zero::test
