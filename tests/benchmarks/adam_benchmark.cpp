// SPDX-License-Identifier: MIT
// Adam's speed as a ratio, in one process: the bytes a second that an in-place update of the same
// arrays moves are the most that it can reach. Bar: 0.88 (fp32, 28 bytes a parameter).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "train/adam.hpp"

namespace {

using namespace zero;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t count = 64 << 20;  // four arrays of 256 MiB: beyond any cache

double seconds(auto&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Reads four arrays and writes three of them, as Adam does, with next to no arithmetic.
void stream(const float* __restrict g,
            float* __restrict w,
            float* __restrict m,
            float* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = g[i];
    w[i] = w[i] * 0.5f + x;
    m[i] = m[i] * 0.5f + x;
    v[i] = v[i] * 0.5f + x;
  }
}

}  // namespace

int main() {
  Stream inline_stream("benchmark");
  Options options;
  const Tensor grads(Kind::gradients, Dtype::fp32, count);
  const Tensor weights(Kind::parameters, Dtype::fp32, count);
  const Tensor momentum(Kind::optimizer, Dtype::fp32, count);
  const Tensor variance(Kind::optimizer, Dtype::fp32, count);
  const auto g = grads.view().as<float>();
  for (std::int64_t i = 0; i < count; ++i) g[i] = static_cast<float>(i % 1000 - 500) * 1e-3f;
  Adam adam(options, inline_stream);
  const AdamSlice slice{0, weights.view(), momentum.view(), variance.view()};

  std::vector<double> ratios;
  for (int round = 0; round < 7; ++round) {
    const double of_stream = seconds([&] {
      stream(g.data(),
             weights.view().as<float>().data(),
             momentum.view().as<float>().data(),
             variance.view().as<float>().data());
    });
    for (const Tensor* state : {&momentum, &variance}) {
      const auto values = state->view().as<float>();
      std::fill(values.begin(), values.end(), 1e-2f);  // as in a run: no zeros, no subnormals
    }
    adam.begin(1);
    const double of_adam = seconds([&] { adam.update(slice, grads.view(), weights.view()); });
    if (round > 0) ratios.push_back(of_stream / of_adam);
  }
  const double ratio = median(ratios);
  fmt::print(
      "Adam over an in-place update of the same arrays: {:.3f} (bar 0.88; {} parameters, "
      "median of {})\n",
      ratio,
      count,
      ratios.size());
  return ratio >= 0.88 ? 0 : 1;
}
