// SPDX-License-Identifier: MIT
// The speed of Adam as ratios in one process. A yardstick runs right before every entry: on a GPU
// a copy within its memory, on the CPU an in-place update of the arrays that Adam updates. An entry
// is judged by its bytes a second over the yardstick's. Adam moves 28 bytes a parameter, in 16 bit
// as in fp32, in staging in fp32 32. Bars: 0.88 on the CPU in fp32, and in staging; on a GPU 0.92,
// and clipping may make that 1.20 as long.
#include <cmath>
#include <fstream>

#include "memory/throw_if.hpp"
#include "report/prediction.hpp"
#include "run/failure.hpp"
#include "tests/benchmarks/benchmark.hpp"
#include "train/adam.hpp"

namespace {
using namespace zero;

constexpr std::int64_t whole = 8;  // elements come in so many: packs

/// Something that is timed. The yardstick, an entry before it, runs right before it, every time.
struct Entry {
  std::string name;
  std::int64_t bytes;  // read and written
  std::function<void()> work;
  std::size_t yardstick = 0;  // 0: the ratio is one of speeds; else of times, more work over less
  double bar = 0;  // 0: not judged
  std::vector<double> ms = {}, ratios = {};
};

/// Reads four arrays and writes three of them, as Adam does, with next to no arithmetic. No
/// variance becomes negative.
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

/// The number of parameters. Says so when they are fewer than they should be.
std::int64_t elements_that_fit(Device device) {
  const bool gpu = device == Device::cuda;
  const std::int64_t most = gpu ? 256 << 20 : 64 << 20;  // beyond any cache
  const std::int64_t available = memory_of(device).available();
  const std::int64_t bytes_an_element = gpu ? 48 : 20;  // of all arrays below
  const std::int64_t fit = available / 10 * 9 / bytes_an_element / whole * whole;
  if (fit >= most) return most;
  fmt::print("fewer parameters than {}: {} bytes are free\n", grouped(most), grouped(available));
  throw_if(fit == 0, ExitCode::resources, "that is too little for a benchmark");
  return fit;
}

/// The arrays, and what is done with them.
class Bench {
 public:
  Bench(Device device, std::int64_t elements) : device_(device), n_(elements) {
    kernels_.bind_thread();
    fill(from_, 1);
    fill(weights_, 1);
    fill(grads_, 1e-2f);
    fill(grads_bf16_, 1e-2f);
    entries_.push_back({gpu_ ? "copy" : "in place", 28 * n_, [this] { yardstick(); }});
    add_all(grads_.view(), weights_.view());
    add_all(grads_bf16_.view(), params_bf16_.view());
    for (int round = 0; round < warm_up_ + rounds_; ++round) measure(round >= warm_up_);
  }

  /// Prints the entries; true when none is beyond its bar.
  bool print() const {
    fmt::print("{}, {} parameters\n", gpu_ ? memory_of(device_).words() : "CPU", grouped(n_));
    fmt::print("ratio: median of {}, each over its yardstick run right before it\n\n", rounds_);
    fmt::print("{:<18}{:>15}{:>9}{:>7}{:>7}\n", "", "bytes", "ms", "TB/s", "ratio");
    bool good = true;
    for (const Entry& entry : entries_) {
      const double ms = median(entry.ms), speed = static_cast<double>(entry.bytes) / ms / 1e9;
      fmt::print("{:<18}{:>15}{:>9.3f}{:>7.3f}", entry.name, grouped(entry.bytes), ms, speed);
      if (!entry.ratios.empty()) {
        const double ratio = median(entry.ratios);
        const bool longer = entry.yardstick > 0;
        fmt::print("{:>7.3f} of {}", ratio, entries_[entry.yardstick].name);
        if (entry.bar > 0) fmt::print(", {} {:.2f}", longer ? "at most" : "bar", entry.bar);
        good = good && (entry.bar == 0 || (longer ? ratio <= entry.bar : ratio >= entry.bar));
      }
      fmt::print("\n");
    }
    return good;
  }

  /// {"elements": ..., "ms": {"adam fp32": ..., ...}}
  void write_json(const std::string& path) const {
    std::string ms;
    for (const Entry& entry : entries_) {
      ms += fmt::format("{}\"{}\": {:.6f}", ms.empty() ? "" : ", ", entry.name, median(entry.ms));
    }
    std::ofstream file(path);
    file << fmt::format("{{\"elements\": {}, \"ms\": {{{}}}}}\n", n_, ms);
    throw_if(!file.flush(), ExitCode::usage, "{}: not all of it was written", path);
  }

 private:
  /// Numbers in [-scale, scale), none of them special.
  void fill(const Tensor& tensor, float scale) {
    const Generator generator(0, RandomStream::inputs);
    kernels_.initialise(tensor.view(), generator, 0, tensor.size(), scale);
  }

  void yardstick() {
    if (gpu_) return kernels_.copy(from_.view(), to_.view());
    const auto data = [](const Tensor& tensor) { return tensor.view().as<float>().data(); };
    update_in_place(grads_.view().as<float>(), data(weights_), data(momentum_), data(variance_));
  }

  void update(View grads, View params, float grad_factor) {
    adam_.begin(grad_factor);
    adam_.update({weights_.view(), momentum_.view(), variance_.view()}, grads, CastTo{params});
  }

  /// As a step of a chapter ends: the norm, the host that waits for it and decides, the update.
  void clip_and_update(View grads, View params) {
    kernels_.clear(sums_);
    kernels_.squared_norm(grads, sums_);
    kernels_.fetch(sums_);
    update(grads, params, static_cast<float>(std::min(1.0, 1 / std::sqrt(sums_.totals.squares))));
  }

  void add_all(View g, View params) {
    const std::string dtype = name_of(g.dtype);
    const double bar = gpu_ ? 0.92 : g.dtype == Dtype::fp32 ? 0.88 : 0;
    const auto adam = [=, this] { update(g, params, 1); };
    const auto staged = [=, this] { update(g, g, 1); };
    const auto clip = [=, this] { clip_and_update(g, params); };
    const std::size_t plain = entries_.size();
    entries_.push_back({"adam " + dtype, 28 * n_, adam, 0, bar});
    if (!gpu_) {  // as a host does it: the new parameters take their gradients' place
      entries_.push_back({"staged adam " + dtype, 24 * n_ + 2 * g.bytes(), staged, 0, 0.88});
    }
    entries_.push_back({"clip + adam " + dtype, 28 * n_ + g.bytes(), clip, plain, gpu_ ? 1.20 : 0});
  }

  /// A GPU gets the work several times: what waiting for it costs is not its own.
  double time(const Entry& entry) {
    const int times = gpu_ ? 4 : 1;
    return milliseconds([&] {
             for (int i = 0; i < times; ++i) entry.work();
             wait_for(kernels_.record());
           }) /
           times;
  }

  void measure(bool keep) {
    Entry& first = entries_[0];
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      const double before = time(entries_[entry.yardstick]), ms = time(entry);
      if (!keep) continue;
      entry.ms.push_back(ms);
      if (entry.yardstick == 0) first.ms.push_back(before);
      const double more = static_cast<double>(entry.bytes) / static_cast<double>(first.bytes);
      entry.ratios.push_back(entry.yardstick == 0 ? more * before / ms : ms / before);
    }
  }

  Tensor array(Dtype dtype, std::int64_t size) { return {device_, Kind::data, dtype, size}; }

  const Device device_;
  const bool gpu_ = device_ == Device::cuda;
  const int warm_up_ = gpu_ ? 5 : 1, rounds_ = gpu_ ? 25 : 6;
  const std::int64_t n_;
  Stream stream_{"benchmark", device_};
  Kernels& kernels_ = stream_.kernels();
  Adam adam_{Options(), stream_};
  Sums sums_{device_};
  const Tensor from_ = array(Dtype::fp32, gpu_ ? n_ * 7 / 2 : 0);
  const Tensor to_ = array(Dtype::fp32, from_.size());
  const Tensor weights_ = array(Dtype::fp32, n_), momentum_ = array(Dtype::fp32, n_);
  const Tensor variance_ = array(Dtype::fp32, n_), grads_ = array(Dtype::fp32, n_);
  const Tensor grads_bf16_ = array(Dtype::bf16, n_), params_bf16_ = array(Dtype::bf16, n_);
  std::vector<Entry> entries_;
};
}  // namespace

/// [cuda [ELEMENTS JSON]]: with a file for its times, which are not judged then; 0: what fits.
int main(int argc, char** argv) {
  fail_fast("adam_benchmark", [](int code) { std::_Exit(code); });
  const bool gpu = argc > 1 && std::string(argv[1]) == "cuda";
  const Device device = gpu ? Device::cuda : Device::cpu;
  if (gpu && visible_gpus().count == 0) {
    fmt::print("{}\n", visible_gpus().why_none);
    return 77;
  }
  const std::int64_t elements = argc > 2 ? std::atoll(argv[2]) : 0;
  const Bench bench(device, elements > 0 ? elements : elements_that_fit(device));
  const bool good = bench.print();
  if (argc > 3) bench.write_json(argv[3]);
  if (!good) fmt::print("a ratio is beyond its bar\n");
  return good || argc > 3 ? 0 : 1;
}
