// SPDX-License-Identifier: MIT
// Prints Adam's speed, in bytes per second, over that of a yardstick, which runs right before it:
// on a GPU a copy within its memory, on the CPU an in-place update of the same arrays. Adam moves
// 28 bytes per parameter in every dtype; in fp32 on 07's host, where the new parameters replace the
// gradients, it moves 32.
//
// The ratio must be at least 0.88 on the CPU and 0.97 on a GPU. On a GPU the norm, the division and
// the mean of two ranks must reach 0.95; norm, clipping and Adam may take 1.20 times as long as
// Adam. Where fp64 costs more than twice fp32, nothing with a norm is judged. On the CPU the norm
// of bf16 must reach 0.2: it adds eight chains of sums, and the limit only shows that its terms are
// computed in vectors.
#include <cmath>

#include "report/prediction.hpp"
#include "run/failure.hpp"
#include "tests/benchmarks/benchmark.hpp"
#include "train/adam.hpp"
#include "train/step.hpp"

namespace {
using namespace zero;

/// The CPU's yardstick reads four arrays and writes three of them, as Adam does, with little
/// arithmetic. It leaves the variance positive, because Adam takes its root.
void update_in_place(std::span<const float> grads, float* __restrict w, float* __restrict m,
                     float* __restrict v) {
  const float* __restrict g = grads.data();
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const float x = g[i];
    w[i] = w[i] * 0.5f + x;
    m[i] = m[i] * 0.5f + x;
    v[i] = v[i] * 0.5f + x * x;
  }
}

/// So many parameters that no cache holds them, but at most what fits in 9/10 of the free memory.
std::int64_t elements_that_fit(const Device& device) {
  const bool gpu = device.type == DeviceType::cuda;
  const std::int64_t bytes_an_element = gpu ? 48 : 20;  // of all arrays of Bench
  const std::int64_t fit = device.available() / 10 * 9 / bytes_an_element / 8 * 8;
  return std::min<std::int64_t>(gpu ? 256 << 20 : 64 << 20, fit);
}

class Bench {
 public:
  Bench(Device& device, std::int64_t elements) : device_(device), n_(elements) {
    device_.bind_thread();
    for (Tensor* each : {&from_, &weights_}) fill(*each, 1);
    for (Tensor* each : {&grads_, &grads_bf16_}) fill(*each, 1e-2f);
  }

  /// Prints a row per operation. Returns whether each ratio that is judged meets its bar.
  bool holds() {
    fmt::print("{}, {} parameters\n", gpu_ ? device_.name() : "CPU", grouped(n_));
    fmt::print("ratio: median of {}, each over what is run right before it\n\n", rounds_);
    const View g = grads_.view(), half = grads_bf16_.view();
    bool good = true;
    if (!gpu_) {
      good &= is_fast("adam fp32", 28 * n_, [&] { update(g, {}, 1); });
      good &= is_fast("staged adam fp32", 32 * n_, [&] { update(g, g, 1); });
      good &= is_fast("staged adam bf16", 28 * n_, [&] { update(half, half, 1); });
      const auto norm = [&] { kernels_.squared_norm(half, sums_); };
      return good & is_fast("norm bf16", 2 * n_, norm, 0.2);
    }
    const bool quick = device_.fp64_costs <= 2;
    if (!quick) fmt::print("fp64 costs {} x fp32: no norm is judged\n", device_.fp64_costs);
    for (const auto& [own, other] : {std::pair(g, weights_.view()), {half, params_bf16_.view()}}) {
      const std::int64_t bytes = own.bytes();
      const std::string of = fmt::format(" {}", name_of(own.dtype));
      const auto norm = [&] { kernels_.squared_norm(own, sums_); };
      good &= is_fast("norm" + of, bytes, norm, 0.95) || !quick;
      good &= is_fast(
          "divide" + of, 2 * bytes, [&] { kernels_.divide(own, 1); }, 0.95);
      const auto mean = [&] { kernels_.ordered_mean(own, 0, other, own, Write::overwrite); };
      good &= is_fast("mean of two" + of, 3 * bytes, mean, 0.95);
    }
    for (const auto& [grads, params] : {std::pair(g, View{}), {half, params_bf16_.view()}}) {
      const std::string name = fmt::format("adam {}", name_of(grads.dtype));
      const auto adam = [&] { update(grads, params, 1); };
      good &= is_fast(name, 28 * n_, adam, 0.97);
      // The end of a step: the norm, the host's wait for it and decision, the update.
      const double longer = time_over(adam, [&] {
        kernels_.clear(sums_);
        kernels_.squared_norm(grads, sums_);
        kernels_.fetch(sums_);
        const double norm = std::sqrt(sums_.totals.squares);
        update(grads, params, static_cast<float>(std::min(1.0, 1 / norm)));
      });
      fmt::print("clip + {:<13}{:.3f} of {}, at most 1.20\n", name, longer, name);
      good &= longer <= 1.20 || !quick;
    }
    return good;
  }

 private:
  /// Fills the tensor with finite numbers in [-scale, scale).
  void fill(Tensor& tensor, float scale) {
    const Generator generator(0, RandomStream::inputs);
    kernels_.initialise(tensor.view(), generator, 0, scale, 0);
  }

  void yardstick() {
    if (gpu_) return kernels_.copy(from_.view(), to_.view());
    const auto data = [](Tensor& tensor) { return tensor.view().as<float>().data(); };
    update_in_place(grads_.view().as<float>(), data(weights_), data(momentum_), data(variance_));
  }

  void update(View grads, View params, float grad_factor) {
    adam_.begin(grad_factor);
    adam_.update({weights_.view(), momentum_.view(), variance_.view(), params}, grads);
  }

  /// Milliseconds of the work, done once; on a GPU four times, so that the wait hardly counts.
  double time(auto work) {
    return milliseconds([&] {
      for (int i = 0; i < (gpu_ ? 4 : 1); ++i) work();
      wait_for(kernels_.record());
    });
  }

  /// Returns the median ratio of the time of `work` to that of `before`, run right before it.
  double time_over(auto before, auto work) {
    std::vector<double> ratios;
    for (int round = 0; round < warm_up_ + rounds_; ++round) {
      const double first = time(before), ms = time(work);
      if (round >= warm_up_) ratios.push_back(ms / first);
    }
    return median(ratios);
  }

  /// Prints the speed of `work`, which moves `bytes`, over the yardstick's: 28 bytes a parameter.
  bool is_fast(const std::string& name, std::int64_t bytes, auto work, double bar = 0.88) {
    const double more = static_cast<double>(bytes) / static_cast<double>(28 * n_);
    const double ratio = more / time_over([&] { yardstick(); }, work);
    fmt::print("{:<20}{:.3f} of {}, bar {:.2f}\n", name, ratio, gpu_ ? "copy" : "in place", bar);
    return ratio >= bar;
  }

  Tensor array(Dtype dtype, std::int64_t size) { return {device_, Kind::data, dtype, size}; }

  Device& device_;
  const bool gpu_ = device_.type == DeviceType::cuda;
  const int warm_up_ = gpu_ ? 5 : 1, rounds_ = gpu_ ? 25 : 6;
  const std::int64_t n_;
  Stream stream_{"benchmark", device_};
  Kernels& kernels_ = stream_.kernels();
  Adam adam_{Options(), stream_};
  Sums sums_{device_};
  Tensor from_ = array(Dtype::fp32, gpu_ ? n_ * 7 / 2 : 0);
  Tensor to_ = array(Dtype::fp32, from_.size());
  Tensor weights_ = array(Dtype::fp32, n_), momentum_ = array(Dtype::fp32, n_);
  Tensor variance_ = array(Dtype::fp32, n_), grads_ = array(Dtype::fp32, n_);
  Tensor grads_bf16_ = array(Dtype::bf16, n_), params_bf16_ = array(Dtype::bf16, n_);
};
}  // namespace

/// Arguments: [cuda [small]]. With `small`, for a simulated GPU, no ratio is judged.
int main(int argc, char**) {
  fail_fast("adam_benchmark", [](int code) { std::_Exit(code); });
  const bool gpu = argc > 1, small = argc > 2;
  if (gpu && visible_gpus().count == 0) {
    fmt::print("{}\n", visible_gpus().why_none);
    return 77;
  }
  const auto device = gpu ? make_gpu() : make_cpu();
  return Bench(*device, small ? 4096 : elements_that_fit(*device)).holds() || small ? 0 : 1;
}
