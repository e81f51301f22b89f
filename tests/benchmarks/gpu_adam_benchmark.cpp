// SPDX-License-Identifier: MIT
// Adam's speed on a GPU as a ratio, in one process: a copy within the GPU's memory runs before
// every entry, and an entry is judged by its bytes a second over that copy's. Every entry moves
// about as many bytes as the copy, so that what a launch costs weighs the same. Bar: 0.92 of the
// copy for Adam (28 bytes a parameter, in 16 bit as in fp32); clipping may make that 1.20 as long.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compute/cuda/check.hpp"
#include "compute/kernels.hpp"
#include "memory/error.hpp"
#include "report/table.hpp"
#include "train/options.hpp"

namespace {

using namespace zero;
using cuda::check_cuda;

constexpr std::int64_t most_elements = 256 << 20;
constexpr std::int64_t bytes_an_element = 48;  // of all arrays below
constexpr std::int64_t whole = 32;  // elements come in so many: a fourth of them is whole packs
constexpr int warm_up = 5;
constexpr int rounds = 25;
constexpr double bar = 0.92, aim = 0.97, most_with_clipping = 1.20;

struct Arguments {
  std::int64_t elements = 0;  // 0: as many as fit, at most most_elements
  bool judge = true;
  std::string json;
};

std::optional<Arguments> read(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-judge") {
      arguments.judge = false;
    } else if (name == "--json" && i + 1 < argc) {
      arguments.json = argv[++i];
    } else if (name == "--elements" && i + 1 < argc) {
      const char* text = argv[++i];
      const char* end = text + std::strlen(text);
      const auto result = std::from_chars(text, end, arguments.elements);
      if (result.ptr != end || arguments.elements < whole || arguments.elements % whole != 0) {
        return std::nullopt;
      }
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Milliseconds between two points of the kernels' queue.
class Stopwatch {
 public:
  explicit Stopwatch(Kernels& kernels)
      : stream_(static_cast<cudaStream_t>(kernels.queue())) {
    for (cudaEvent_t* event : {&start_, &end_}) {
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDefault));
    }
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double time(const std::function<void()>& work) {
    check_cuda(cudaEventRecord(start_, stream_));
    work();
    check_cuda(cudaEventRecord(end_, stream_));
    check_cuda(cudaEventSynchronize(end_));
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start_, end_));
    return ms;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

/// Something that is timed. The yardstick runs right before it, every time.
struct Entry {
  std::string name;
  std::int64_t bytes;  // read and written
  std::function<void()> work;
  const Entry* yardstick = nullptr;
  std::vector<double> ms = {}, ratios = {};

  double terabytes_a_second() const { return static_cast<double>(bytes) / median(ms) / 1e9; }
};

/// Numbers in [-scale, scale), none of them special.
Tensor random(Kernels& kernels, Kind kind, Dtype dtype, std::int64_t size, float scale) {
  Tensor tensor(kind, dtype, size);
  const Generator generator(0, RandomStream::inputs);
  kernels.initialise(tensor.view(), generator, 0, size, scale);
  return tensor;
}

/// What Adam::begin forms in step 1000, so that every call is the same.
AdamScalars scalars_of(const Options& options, float grad_factor) {
  constexpr int step = 1000;
  const double b1 = options.beta1, b2 = options.beta2;
  return {grad_factor,
          static_cast<float>(b1),
          static_cast<float>(1 - b1),
          static_cast<float>(b2),
          static_cast<float>(1 - b2),
          1,
          static_cast<float>(options.lr / (1 - std::pow(b1, step))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(b2, step))),
          static_cast<float>(options.eps)};
}

std::unique_ptr<Kernels> kernels_of_this_thread() {
  auto kernels = make_kernels(Device::cuda);
  kernels->bind_thread();
  return kernels;
}

/// The arrays, and what is done with them.
class Bench {
 public:
  explicit Bench(std::int64_t elements)
      : n_(elements),
        kernels_(kernels_of_this_thread()),
        from_(random(*kernels_, Kind::data, Dtype::fp32, adam_bytes() / 8, 1)),
        to_(Kind::data, Dtype::fp32, from_.size()),
        weights_(random(*kernels_, Kind::optimizer, Dtype::fp32, n_, 1)),
        momentum_(Kind::optimizer, Dtype::fp32, n_),
        variance_(Kind::optimizer, Dtype::fp32, n_),
        grads_(random(*kernels_, Kind::gradients, Dtype::fp32, n_, 1e-2f)),
        grads_bf16_(random(*kernels_, Kind::gradients, Dtype::bf16, n_, 1e-2f)),
        params_bf16_(Kind::parameters, Dtype::bf16, n_) {}

  std::vector<Entry> measure() {
    std::vector<Entry> entries = make_entries();
    Stopwatch watch(*kernels_);
    for (int round = 0; round < warm_up + rounds; ++round) {
      for (std::size_t i = 1; i < entries.size(); ++i) {
        Entry& entry = entries[i];
        const double before = watch.time(entry.yardstick->work);
        const double ms = watch.time(entry.work);
        if (round < warm_up) continue;
        entry.ms.push_back(ms);
        if (entry.yardstick == &entries[0]) {
          entries[0].ms.push_back(before);
          const double bytes = static_cast<double>(entry.bytes);
          entry.ratios.push_back(bytes / ms * before / static_cast<double>(entries[0].bytes));
        } else {
          entry.ratios.push_back(ms / before);
        }
      }
    }
    return entries;
  }

 private:
  std::int64_t adam_bytes() const { return 28 * n_; }

  std::vector<Entry> make_entries() {
    std::vector<Entry> entries;
    entries.reserve(16);  // entries point at one another
    entries.push_back({"copy", adam_bytes(), [this] { kernels_->copy(from_.view(), to_.view()); }});
    const Entry* copy = &entries[0];
    const View shard = to_.view().part(0, n_ / 4);
    const View shard_bf16 = params_bf16_.view().part(0, n_ / 4);
    const View grads = grads_.view(), grads_bf16 = grads_bf16_.view();
    for (const View g : {grads, grads_bf16}) {
      const std::string dtype = name_of(g.dtype);
      entries.push_back({"adam " + dtype, adam_bytes(), [this, g] { adam(g, 1); }, copy});
      const Entry* plain = &entries.back();
      entries.push_back({"clip + adam " + dtype,
                         adam_bytes() + g.bytes(),
                         [this, g] { clip_and_adam(g); },
                         plain});
    }
    for (const View g : {grads, grads_bf16}) {
      const std::string dtype = name_of(g.dtype);
      const auto several = [&](const char* name, std::int64_t bytes, auto work) {
        const std::int64_t calls = std::max<std::int64_t>(1, adam_bytes() / bytes);
        const auto all = [=] {
          for (std::int64_t call = 0; call < calls; ++call) work();
        };
        entries.push_back({fmt::format("{} {}", name, dtype), calls * bytes, all, copy});
      };
      several("squared_norm", g.bytes(), [this, g] { kernels_->squared_norm(g, sums_); });
      // By 1, so that the values stay what they are however often it is called.
      several("divide", 2 * g.bytes(), [this, g] { kernels_->divide(g, 1); });
      const View mean = g.dtype == Dtype::fp32 ? shard : shard_bf16;
      several("ordered_mean", g.bytes() + mean.bytes(), [this, g, mean] {
        const View own = g.part(0, mean.size), received = g.part(mean.size, 3 * mean.size);
        kernels_->ordered_mean(own, 0, received, mean, false);
      });
    }
    return entries;
  }

  void adam(View grads, float grad_factor) {
    const AdamSlice slice{0, weights_.view(), momentum_.view(), variance_.view()};
    const bool in_place = grads.dtype == Dtype::fp32;
    const View params = in_place ? slice.weights : params_bf16_.view();
    kernels_->adam(scalars_of(options_, grad_factor), slice, grads, params);
  }

  /// As a step of a chapter ends: the norm, the host that waits for it and decides, the update.
  void clip_and_adam(View grads) {
    kernels_->clear(sums_);
    kernels_->squared_norm(grads, sums_);
    kernels_->fetch(sums_);
    adam(grads, static_cast<float>(std::min(1.0, 1 / std::sqrt(sums_.totals.squares))));
  }

  std::int64_t n_;
  std::unique_ptr<Kernels> kernels_;
  Options options_;
  Sums sums_;
  Tensor from_, to_;
  Tensor weights_, momentum_, variance_;
  Tensor grads_, grads_bf16_, params_bf16_;
};

/// The number of parameters. Says so when they are fewer than they should be.
std::int64_t elements_that_fit() {
  const std::int64_t available = available_bytes();
  const std::int64_t fit = available / 10 * 9 / bytes_an_element / whole * whole;
  if (fit >= most_elements) return most_elements;
  fmt::print("fewer parameters than {}: {} bytes are free on this GPU\n",
             grouped(most_elements),
             grouped(available));
  if (fit == 0) throw Error(ExitCode::resources, "that is too little for a benchmark");
  return fit;
}

/// Prints the entries; true when none is beyond its bar.
bool print(const std::vector<Entry>& entries, std::int64_t elements) {
  fmt::print("{}, {} parameters\n", device_words(), grouped(elements));
  fmt::print("ratio: median of {}, each over its yardstick run right before it\n\n", rounds);
  fmt::print("{:<18}{:>15}{:>9}{:>7}{:>7}\n", "", "bytes", "ms", "TB/s", "ratio");
  bool good = true;
  for (const Entry& entry : entries) {
    fmt::print("{:<18}{:>15}{:>9.3f}{:>7.3f}",
               entry.name,
               grouped(entry.bytes),
               median(entry.ms),
               entry.terabytes_a_second());
    if (entry.yardstick) {
      const double ratio = median(entry.ratios);
      const bool of_copy = entry.yardstick == &entries[0];
      const bool is_adam = entry.name.starts_with("adam");
      if (of_copy) {
        fmt::print("{:>7.3f} of copy{}", ratio, is_adam ? fmt::format(", bar {:.2f}", bar) : "");
      } else {
        fmt::print("{:>7.3f} of adam, at most {:.2f}", ratio, most_with_clipping);
      }
      if (is_adam && of_copy) good = good && ratio >= bar;
      if (!of_copy) good = good && ratio <= most_with_clipping;
    }
    fmt::print("\n");
  }
  fmt::print("\nAdam aims at {:.2f} of the copy\n", aim);
  return good;
}

/// {"elements": ..., "ms": {"adam fp32": ..., ...}}
void write_json(const std::string& path, const std::vector<Entry>& entries, std::int64_t elements) {
  std::string ms;
  for (const Entry& entry : entries) {
    ms += fmt::format("{}\"{}\": {:.6f}", ms.empty() ? "" : ", ", entry.name, median(entry.ms));
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) throw Error(ExitCode::usage, fmt::format("--json {}: cannot be written", path));
  fmt::print(file, "{{\"elements\": {}, \"ms\": {{{}}}}}\n", elements, ms);
  if (std::fclose(file) != 0) {
    throw Error(ExitCode::resources, fmt::format("--json {}: not all of it was written", path));
  }
}

int run(const Arguments& arguments) {
  use_device(Device::cuda);
  const std::int64_t elements = arguments.elements ? arguments.elements : elements_that_fit();
  const std::vector<Entry> entries = Bench(elements).measure();
  const bool good = print(entries, elements);
  if (!arguments.json.empty()) write_json(arguments.json, entries, elements);
  if (!arguments.judge) {
    fmt::print("not judged: --no-judge\n");
    return 0;
  }
  if (!good) fmt::print("a ratio is beyond its bar\n");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = read(argc, argv);
  if (!arguments) {
    fmt::print(stderr,
               "usage: {} [--elements N, a multiple of {}] [--no-judge] [--json FILE]\n",
               argv[0],
               whole);
    return static_cast<int>(ExitCode::usage);
  }
  const Gpus gpus = visible_gpus();
  if (gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  try {
    return run(*arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return exit_code_of(error);
  }
}
