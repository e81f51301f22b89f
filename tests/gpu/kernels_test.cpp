// SPDX-License-Identifier: MIT
// Every kernel of the GPU against the CPU's, from the same fresh random inputs: bit for bit where
// the arithmetic is the same, else within a bound that is derived where it stands. Sizes are odd,
// views begin anywhere, outputs are poisoned first, and what lies around them must stay.
#include "compute/kernels.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compute/stream.hpp"
#include "tests/unit/elements.hpp"
#include "train/adam.hpp"

namespace zero::test {

namespace {

constexpr std::int64_t sizes[] = {1, 7, 8, 9, 255, 256, 1000, 4099};
constexpr std::int64_t offsets[] = {0, 1, 3};
constexpr std::int64_t margin = 16;
constexpr float poison = 12345;

/// Another one in every run; a failure prints it.
std::uint64_t fresh_seed() {
  static const std::uint64_t seed = std::random_device()();
  return seed;
}

/// Numbers in [-1, 1), another sequence for every object.
class Random {
 public:
  float operator()() { return generator_.uniform(next_++); }
  /// -1, 0 or 1.
  float small_integer() { return std::round(1.49f * (*this)()); }

 private:
  static inline std::uint64_t made_ = 0;
  Generator generator_{fresh_seed() + made_++, RandomStream::inputs};
  std::uint64_t next_ = 0;
};

Tensor on(Device device, Dtype dtype, std::int64_t size) {
  use_device(device);
  Tensor tensor(Kind::data, dtype, size);
  use_device(Device::cuda);
  return tensor;
}

/// The same elements in the memory of both, with a margin around them.
class Twin {
 public:
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset, auto value)
      : size_(size),
        offset_(margin + offset),
        cpu_(on(Device::cpu, dtype, size + 2 * margin + offset)),
        gpu_(on(Device::cuda, dtype, size + 2 * margin + offset)) {
    fill(cpu_.view(), [](std::int64_t) { return poison; });
    fill(cpu(), [&](std::int64_t) { return value(); });
    copy_now(Device::cuda, gpu_.view().data, cpu_.view().data, cpu_.view().bytes());
  }
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset)
      : Twin(dtype, size, offset, [] { return poison; }) {}

  View cpu() const { return cpu_.view().part(offset_, size_); }
  View gpu() const { return gpu_.view().part(offset_, size_); }

  void check_same_bits(const char* what) const {
    INFO(std::string(what), " of ", size_, " elements from ", offset_);
    CHECK(bits(cpu_.view()) == bits(gpu_.view()));
  }
  /// |gpu - cpu| <= bound(i) for every element, and equal margins.
  void check_near(const char* what, auto bound) const {
    INFO(std::string(what), " of ", size_, " elements from ", offset_);
    const std::vector<float> a = values(cpu_.view()), b = values(gpu_.view());
    for (std::int64_t i = 0; i < std::ssize(a); ++i) {
      const bool inside = i >= offset_ && i < offset_ + size_;
      const double most = inside ? bound(i - offset_) : 0.0;
      if (std::abs(static_cast<double>(a[i]) - b[i]) <= most) continue;
      FAIL_CHECK("element ", i - offset_, ": ", b[i], ", the CPU has ", a[i], ", bound ", most);
      return;
    }
  }

 private:
  std::int64_t size_, offset_;
  Tensor cpu_, gpu_;
};

/// Both devices' kernels, and one Sums of each.
struct Both {
  std::unique_ptr<Kernels> cpu = make_kernels(Device::cpu);
  std::unique_ptr<Kernels> gpu = make_kernels(Device::cuda);
  Sums cpu_sums, gpu_sums;
  Tensor cpu_panel = on(Device::cpu, Dtype::fp32, panel_elements(Device::cpu));
  Tensor gpu_panel = on(Device::cuda, Dtype::fp32, panel_elements(Device::cuda));

  Both() {
    gpu->clear(gpu_sums);
    cpu->clear(cpu_sums);
  }
};

/// For every dtype, size and offset.
void everywhere(auto test) {
  INFO("seed ", fresh_seed());
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : sizes) {
      for (const std::int64_t offset : offsets) {
        INFO("dtype ", std::string(name_of(dtype)));
        test(dtype, size, offset);
      }
    }
  }
}

/// Largest relative error of a sum of n products in fp32 (Higham, 2002, section 3.1), and of its
/// two neighbours: a bias added, a factor multiplied.
double gamma_of(std::int64_t n) {
  return static_cast<double>(n + 2) * 0x1p-24 / (1 - static_cast<double>(n + 2) * 0x1p-24);
}

/// The smallest step between numbers of that dtype: half of it is what rounding a tiny number
/// costs.
double tiny(Dtype dtype) {
  return dtype == Dtype::fp16 ? 0x1p-24 : 0x1p-133;
}

struct Shapes {
  std::int64_t batch, inputs, outputs;
};
constexpr Shapes shapes[] = {
    {1, 1, 1}, {5, 7, 9}, {17, 24, 8}, {33, 8, 64}, {300, 40, 72}, {600, 3, 17}};

}  // namespace

TEST_CASE("adam: the same bits") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Both both;
    Random random;
    const auto uniform = [&] { return random(); };
    const Twin grads(dtype, size, offset, uniform);
    const Twin weights(Dtype::fp32, size, offset, uniform);
    const Twin momentum(Dtype::fp32, size, offset, uniform);
    const Twin variance(Dtype::fp32, size, offset, [&] { return std::abs(random()); });
    const Twin params(dtype, size, offset);
    const bool in_place = dtype == Dtype::fp32;
    const AdamScalars scalars{0.37f, 0.9f, 0.1f, 0.999f, 1e-3f, 0.9998f, 2e-2f, 31.6f, 1e-8f};
    for (int step = 0; step < 3; ++step) {
      both.cpu->adam(scalars,
                     {0, weights.cpu(), momentum.cpu(), variance.cpu()},
                     grads.cpu(),
                     in_place ? weights.cpu() : params.cpu());
      both.gpu->adam(scalars,
                     {0, weights.gpu(), momentum.gpu(), variance.gpu()},
                     grads.gpu(),
                     in_place ? weights.gpu() : params.gpu());
    }
    both.gpu->finish();
    for (const Twin* twin : {&weights, &momentum, &variance, &params, &grads}) {
      twin->check_same_bits("adam");
    }
  });
}

TEST_CASE("adam: more than 2^31 elements") {
  const std::int64_t size = (std::int64_t{1} << 31) + 1001;
  if (available_bytes() < 17 * size) {
    MESSAGE("this GPU has not the ", 16 * size, " bytes for it");
    return;
  }
  const Generator random(fresh_seed(), RandomStream::weights);
  const AdamScalars scalars{1, 0.9f, 0.1f, 0.999f, 1e-3f, 1, 1e-2f, 31.6f, 1e-8f};
  const auto kernels = make_kernels(Device::cuda);
  const Tensor weights = on(Device::cuda, Dtype::fp32, size);
  const Tensor grads = on(Device::cuda, Dtype::fp32, size);
  const Tensor momentum = on(Device::cuda, Dtype::fp32, size);
  const Tensor variance = on(Device::cuda, Dtype::fp32, size);
  kernels->initialise(weights.view(), random, 0, size, 1);
  kernels->initialise(grads.view(), random, 7, size, 1);
  const AdamSlice slice{0, weights.view(), momentum.view(), variance.view()};
  kernels->adam(scalars, slice, grads.view(), weights.view());
  kernels->finish();
  for (const std::int64_t first : {std::int64_t{0}, size / 2, size - 1000}) {
    const std::vector<float> ours = values(weights.view().part(first, 1000));
    for (std::int64_t i = 0; i < 1000; ++i) {
      float weight = random.uniform(first + i), m = 0, v = 0;
      adam_element(scalars, random.uniform(7 + first + i), weight, m, v);
      REQUIRE(std::bit_cast<std::uint32_t>(ours[i]) == std::bit_cast<std::uint32_t>(weight));
    }
  }
}

TEST_CASE("divide, copy, initialise: the same bits") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Both both;
    Random random;
    const Twin values(dtype, size, offset, [&] { return random(); });
    const Twin copied(dtype, size, offset);
    const Twin initial(dtype, size, offset);
    const Generator weights(fresh_seed(), RandomStream::weights);
    both.cpu->divide(values.cpu(), 3);
    both.gpu->divide(values.gpu(), 3);
    both.cpu->copy(values.cpu(), copied.cpu());
    both.gpu->copy(values.gpu(), copied.gpu());
    const std::uint64_t far = std::uint64_t{1} << 40;
    both.cpu->initialise(initial.cpu(), weights, far, size - 2, 0.3f);
    both.gpu->initialise(initial.gpu(), weights, far, size - 2, 0.3f);
    both.gpu->finish();
    values.check_same_bits("divide");
    copied.check_same_bits("copy");
    initial.check_same_bits("initialise");
  });
}

TEST_CASE("ordered mean: the same bits, whoever I am, stored and added") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Both both;
    Random random;
    // Of different magnitude, so that another order would show.
    const auto uneven = [&] { return std::ldexp(random(), static_cast<int>(4 * random())); };
    for (const int ranks : {1, 2, 3, 5}) {
      for (const Write write : {false, true}) {
        const int rank = static_cast<int>(size) % ranks;
        const Twin own(dtype, size, offset, uneven);
        const Twin received(dtype, size * (ranks - 1), offset, uneven);
        const Twin shard(dtype, size, offset, uneven);
        both.cpu->ordered_mean(own.cpu(), rank, received.cpu(), shard.cpu(), add);
        both.cpu->ordered_mean(own.cpu(), rank, received.cpu(), own.cpu(), add);
        both.gpu->ordered_mean(own.gpu(), rank, received.gpu(), shard.gpu(), add);
        both.gpu->ordered_mean(own.gpu(), rank, received.gpu(), own.gpu(), add);
        both.gpu->finish();
        shard.check_same_bits("ordered mean elsewhere");
        own.check_same_bits("ordered mean in place");
      }
    }
  });
}

TEST_CASE("squared norm: both sums are right to their own rounding") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Both both;
    Random random;
    const Twin values(dtype, size, offset, [&] { return random(); });
    for (int i = 0; i < 2; ++i) {
      both.cpu->squared_norm(values.cpu(), both.cpu_sums);
      both.gpu->squared_norm(values.gpu(), both.gpu_sums);
    }
    both.gpu->fetch(both.gpu_sums);
    // All terms are positive: a sum of n of them in any order is right to n half units of double.
    const double bound = 2 * static_cast<double>(2 * size) * 0x1p-53 * both.cpu_sums.squares;
    CHECK(std::abs(both.gpu_sums.squares - both.cpu_sums.squares) <= bound);
    CHECK(both.gpu_sums.loss == 0);
  });
}

TEST_CASE("samples: the same bits") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t rows : {1, 5, 16, 17}) {
      Both both;
      Random random;
      constexpr std::int64_t length = 1000, code_size = 3, context = 8;
      const Twin text(Dtype::fp32, length / 4, 0, [&] { return random(); });  // any bytes
      const Twin codes(Dtype::fp32, 256 * code_size, 0, [&] { return random(); });
      const Twin inputs(dtype, rows * context * code_size, 1);
      const Twin classes(Dtype::fp32, rows, 1);
      const Generator positions(fresh_seed(), RandomStream::positions);
      const auto source = [&](View bytes, View numbers) {
        return TextSource{bytes.data, length, numbers, code_size, context, positions};
      };
      both.cpu->text_samples(source(text.cpu(), codes.cpu()), 77, inputs.cpu(), classes.cpu());
      both.gpu->text_samples(source(text.gpu(), codes.gpu()), 77, inputs.gpu(), classes.gpu());
      both.gpu->finish();
      inputs.check_same_bits("text inputs");
      classes.check_same_bits("text targets");
      for (const std::int64_t width : {1, 7, 128, 300}) {
        const Twin first(Dtype::fp32, width * TeacherSource::hidden, 0, [&] { return random(); });
        const Twin second(Dtype::fp32, TeacherSource::hidden * 9, 0, [&] { return random(); });
        const Twin numbers(dtype, rows * width, 1);
        const Twin targets(Dtype::fp32, rows * 9, 1);
        const Generator of_inputs(fresh_seed(), RandomStream::inputs);
        const std::int64_t far = std::int64_t{1} << 33;
        both.cpu->teacher_samples(
            {first.cpu(), second.cpu(), width, 9, of_inputs}, far, numbers.cpu(), targets.cpu());
        both.gpu->teacher_samples(
            {first.gpu(), second.gpu(), width, 9, of_inputs}, far, numbers.gpu(), targets.gpu());
        both.gpu->finish();
        numbers.check_same_bits("teacher inputs");
        targets.check_same_bits("teacher targets");
      }
    }
  }
}

namespace {

/// One layer with everything that its three products read and write.
struct LayerTwin {
  LayerTwin(Dtype dtype, const Shapes& s, bool bias, std::int64_t offset, auto value)
      : shape{s.batch, s.inputs, s.outputs, bias},
        x(dtype, s.batch * s.inputs, 0, value),
        params(dtype, shape.weights() + (bias ? s.outputs : 0) + 5, offset, value),
        y(dtype, s.batch * s.outputs, 0),
        dy(dtype, s.batch * s.outputs, 0, value),
        dx(dtype, s.batch * s.inputs, 0),
        grads(dtype, shape.weights() + (bias ? s.outputs : 0) + 5, offset, value) {}

  void run(Both& both, bool relu, Write write) const {
    const auto padded = [](View view) {
      view.used = view.size - 5;
      return view;
    };
    const View cpu = both.cpu_panel.view(), gpu = both.gpu_panel.view();
    both.cpu->linear_forward(shape, x.cpu(), params.cpu(), y.cpu(), relu, cpu);
    both.gpu->linear_forward(shape, x.gpu(), params.gpu(), y.gpu(), relu, gpu);
    both.cpu->linear_backward_params(shape, dy.cpu(), x.cpu(), padded(grads.cpu()), add, cpu);
    both.gpu->linear_backward_params(shape, dy.gpu(), x.gpu(), padded(grads.gpu()), add, gpu);
    both.cpu->linear_backward_input(shape, dy.cpu(), params.cpu(), x.cpu(), dx.cpu(), relu, cpu);
    both.gpu->linear_backward_input(shape, dy.gpu(), params.gpu(), x.gpu(), dx.gpu(), relu, gpu);
    both.gpu->finish();
  }

  LinearShape shape;
  Twin x, params, y, dy, dx, grads;
};

}  // namespace

TEST_CASE("a layer on small integers: every sum is exact, so the same numbers") {
  for (const Dtype dtype : dtypes) {
    for (const Shapes& s : shapes) {
      for (const bool bias : {false, true}) {
        for (const bool relu : {false, true}) {
          INFO("seed ", fresh_seed(), " dtype ", std::string(name_of(dtype)), " batch ", s.batch);
          // bf16 has all integers up to 256; a longer sum than that of -1, 0, 1 is unlikely.
          if (dtype == Dtype::bf16 && s.batch > 256) continue;
          Both both;
          Random random;
          const LayerTwin layer(dtype, s, bias, 0, [&] { return random.small_integer(); });
          layer.run(both, relu, relu);
          const auto exactly = [](std::int64_t) { return 0.0; };
          layer.y.check_near("outputs", exactly);
          layer.grads.check_near("gradients", exactly);
          layer.dx.check_near("gradients of inputs", exactly);
        }
      }
    }
  }
}

TEST_CASE("a layer on any numbers: within what sums in another order may differ") {
  for (const Dtype dtype : dtypes) {
    for (const Shapes& s : shapes) {
      for (const Write write : {false, true}) {
        INFO("seed ", fresh_seed(), " dtype ", std::string(name_of(dtype)), " batch ", s.batch);
        Both both;
        Random random;
        const LayerTwin layer(dtype, s, true, 0, [&] { return random(); });
        const std::vector<float> x = values(layer.x.cpu()), w = values(layer.params.cpu()),
                                 dy = values(layer.dy.cpu()), g = values(layer.grads.cpu());
        layer.run(both, true, add);
        // Each side's sum is right to gamma times the sum of absolute terms. The CPU then rounds an
        // output once and the GPU twice, gradients once each and twice where they are added; any
        // rounding is half a unit of at most that sum and half a step of the tiniest numbers.
        const double unit = unit_roundoff(dtype);
        const auto bound = [&](std::int64_t terms, double size, int roundings) {
          return 2 * gamma_of(terms) * size + roundings * (unit * 1.01 * size + tiny(dtype));
        };
        layer.y.check_near("outputs", [&](std::int64_t at) {
          const std::int64_t i = at / s.outputs, o = at % s.outputs;
          double size = std::abs(w[layer.shape.weights() + o]);
          for (std::int64_t k = 0; k < s.inputs; ++k) {
            size += std::abs(static_cast<double>(x[i * s.inputs + k]) * w[o * s.inputs + k]);
          }
          return bound(s.inputs, size, 3);
        });
        layer.dx.check_near("gradients of inputs", [&](std::int64_t at) {
          const std::int64_t i = at / s.inputs, k = at % s.inputs;
          double size = 0;
          for (std::int64_t o = 0; o < s.outputs; ++o) {
            size += std::abs(static_cast<double>(dy[i * s.outputs + o]) * w[o * s.inputs + k]);
          }
          return bound(s.outputs, size, 2);
        });
        layer.grads.check_near("gradients", [&](std::int64_t at) {
          double size = add && at < std::ssize(g) - 5 ? std::abs(g[at]) : 0;
          const std::int64_t weights = layer.shape.weights();
          if (at >= weights + s.outputs) return 0.0;  // padding
          for (std::int64_t i = 0; i < s.batch; ++i) {
            size += at < weights ? std::abs(static_cast<double>(dy[i * s.outputs + at / s.inputs]) *
                                            x[i * s.inputs + at % s.inputs])
                                 : std::abs(dy[i * s.outputs + at - weights]);
          }
          return bound(s.batch, size, add ? 4 : 2);
        });
      }
    }
  }
}

TEST_CASE("squared error: the same gradients, the loss to its rounding") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Both both;
    Random random;
    const Twin outputs(dtype, size, offset, [&] { return random(); });
    const Twin targets(Dtype::fp32, size, offset, [&] { return random(); });
    const Twin delta(dtype, size, offset);
    both.cpu->squared_error(outputs.cpu(), targets.cpu(), 8, delta.cpu(), both.cpu_sums);
    both.gpu->squared_error(outputs.gpu(), targets.gpu(), 8, delta.gpu(), both.gpu_sums);
    both.gpu->fetch(both.gpu_sums);
    delta.check_same_bits("delta");
    const double bound = 2 * static_cast<double>(size + 1) * 0x1p-53 * both.cpu_sums.loss;
    CHECK(std::abs(both.gpu_sums.loss - both.cpu_sums.loss) <= bound);
  });
}

TEST_CASE("cross-entropy: within what another exp and another order may differ") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t rows : {1, 3, 1030}) {
      for (const std::int64_t count : {1, 5, 256, 300}) {
        Both both;
        Random random;
        const Twin outputs(dtype, rows * count, 0, [&] { return 3 * random(); });
        const Twin targets(Dtype::fp32, rows, 0, [&] {
          return std::floor(static_cast<float>(count) * (random() + 1) / 2);
        });
        const Twin delta(dtype, rows * count, 0);
        constexpr float scale = 16;
        both.cpu->cross_entropy(
            outputs.cpu(), targets.cpu(), rows, scale, delta.cpu(), both.cpu_sums);
        both.gpu->cross_entropy(
            outputs.gpu(), targets.gpu(), rows, scale, delta.gpu(), both.gpu_sums);
        both.gpu->fetch(both.gpu_sums);
        // exp is right to 2 units on a GPU and 1 on the CPU, in numerator and terms; a sum of
        // `count` positive terms adds count half units a side; a division, a difference from 1 and
        // a product follow. In all at most e on a probability of at most 1.
        const double e = 2 * gamma_of(count) + 8 * 0x1p-23;
        const double factor = scale / static_cast<double>(rows);
        delta.check_near("delta", [&](std::int64_t) {
          return factor * (e + 2 * unit_roundoff(dtype)) + tiny(dtype);
        });
        // log(sum) <= log(count) moves by e and by 2 units of itself; two additions of numbers of
        // at most 3 follow.
        const double size = std::log(static_cast<double>(count)) + 9;
        CHECK(std::abs(both.gpu_sums.loss - both.cpu_sums.loss) <= e + 4 * 0x1p-23 * size);
      }
    }
  }
}

TEST_CASE("clear forgets both sums") {
  Both both;
  Random random;
  const Twin values(Dtype::fp32, 100, 0, [&] { return random(); });
  both.gpu->squared_norm(values.gpu(), both.gpu_sums);
  both.gpu->clear(both.gpu_sums);
  both.gpu->fetch(both.gpu_sums);
  CHECK(both.gpu_sums.squares == 0);
}

TEST_CASE("two streams: what waits for an event sees what was done before it") {
  constexpr std::int64_t size = 1 << 20;
  const Generator random(fresh_seed(), RandomStream::weights);
  const Tensor made = on(Device::cuda, Dtype::fp32, size);
  const Tensor seen = on(Device::cuda, Dtype::fp32, size);
  for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker}) {
    Stream first("first", mode), second("second", mode);
    for (int round = 1; round <= 5; ++round) {
      first.wait(second.record());  // it has read the last one
      first.run([&, round] {
        first.kernels().initialise(made.view(), random, round * size, size, 1);
        for (int i = 0; i < 3; ++i) first.kernels().divide(made.view(), 2);
      });
      second.wait(first.record());
      second.run([&] { second.kernels().copy(made.view(), seen.view()); });
      second.synchronise();
      const float last = values(seen.view().part(size - 1, 1))[0];
      CHECK(last == random.uniform(round * size + size - 1) / 8);
    }
  }
}

TEST_CASE("a wait in vain ends with what the watch throws") {
  struct InVain : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  Stream stream("test");
  const Tensor values = on(Device::cuda, Dtype::fp32, 1 << 24);
  for (int i = 0; i < 50; ++i) stream.kernels().divide(values.view(), 3);
  set_watch([](auto) { throw InVain("enough"); });
  CHECK_THROWS_AS(stream.synchronise(), InVain);
  set_watch({});
  stream.synchronise();
}

TEST_CASE("host code cannot read a GPU's memory by accident") {
  const Tensor tensor = on(Device::cuda, Dtype::fp32, 8);
  CHECK_THROWS_AS(tensor.view().as<float>(), std::logic_error);
  CHECK(OnHost(tensor.view()).as<float>()[7] == 0);
}

}  // namespace zero::test
