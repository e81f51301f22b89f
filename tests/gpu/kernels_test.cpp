// SPDX-License-Identifier: MIT
// Every kernel of the GPU against the CPU's, from the same fresh random inputs: bit for bit where
// the arithmetic is the same, else within a bound that is derived where it stands. Sizes are odd,
// views begin anywhere, outputs are poisoned first, and what lies around them must stay.
#include "compute/kernels.hpp"

#include <cmath>
#include <random>

#include "compute/adam_element.hpp"
#include "report/prediction.hpp"
#include "tests/count_listener.hpp"
#include "tests/unit/checks.hpp"
#include "trace/recorder.hpp"

namespace zero::test {
namespace {
constexpr std::int64_t margin = 16;
constexpr float poison = 12345;
constexpr Write writes[] = {Write::overwrite, Write::add};

/// Another one in every run; a failure prints it.
std::uint64_t fresh_seed() {
  static const std::uint64_t seed = std::random_device()();
  return seed;
}

/// Numbers in [-1, 1), another sequence for every object.
struct Random {
  float operator()() { return generator.uniform(next++); }

  static inline std::uint64_t made = 0;
  Generator generator{fresh_seed() + made++, RandomStream::inputs};
  std::uint64_t next = 0;
};

Device& gpu() {
  static const std::unique_ptr<Device> device = make_gpu();
  return *device;
}

Tensor on_gpu(std::int64_t size) { return Tensor(gpu(), Kind::data, Dtype::fp32, size); }

/// The same elements in the memory of both, with a margin around them.
class Twin {
 public:
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset, auto&& value)
      : size_(size),
        offset_(margin + offset),
        cpu_(cpu(), Kind::data, dtype, size + 2 * margin + offset),
        gpu_(gpu(), Kind::data, dtype, cpu_.size()) {
    fill(cpu_.view(), poison);
    fill(on(cpu()), [&](std::int64_t) { return value(); });
    gpu().copy(gpu_.view().data, cpu_.view().data, cpu_.view().bytes());
  }
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset)
      : Twin(dtype, size, offset, [] { return poison; }) {}

  View on(const Device& device) const {
    return (device.type == DeviceType::cpu ? cpu_ : gpu_).view().part(offset_, size_);
  }
  std::vector<float> on_cpu() const { return values(on(cpu())); }

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

struct Side {
  explicit Side(Device& where) : device(where), kernels(make_kernels(where)), sums(where) {
    kernels->clear(sums);
  }
  View operator()(const Twin& twin) const { return twin.on(device); }
  Kernels* operator->() const { return kernels.get(); }

  Device& device;
  std::unique_ptr<Kernels> kernels;
  Sums sums;
};

struct Both {
  Side cpu{test::cpu()}, gpu{test::gpu()};

  /// Does the work on each, waits for it, and fetches the sums.
  void run(auto work) {
    for (Side* side : {&cpu, &gpu}) {
      work(*side);
      (*side)->fetch(side->sums);
    }
  }
};

void everywhere(auto test) {
  INFO("seed ", fresh_seed());
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : {1, 7, 8, 9, 255, 256, 1000, 4099}) {
      for (const std::int64_t offset : {0, 1, 3}) {
        INFO("dtype ", std::string(name_of(dtype)));
        Both both;
        test(both, dtype, size, offset);
      }
    }
  }
}

/// Bytes, where a program has 32 MiB: so few that a weight needs the room several times over, and a
/// row of 1300 more than all of it.
constexpr std::int64_t product_room = 2400;

/// Largest relative error of a sum of n products in fp32 (Higham, 2002, section 3.1), and of its
/// two neighbours: a bias added, a factor multiplied.
double gamma_of(std::int64_t n) {
  return static_cast<double>(n + 2) * 0x1p-24 / (1 - static_cast<double>(n + 2) * 0x1p-24);
}

/// The smallest step between numbers of that dtype: half of it is what rounding a tiny number
/// costs.
double tiny(Dtype dtype) { return dtype == Dtype::fp16 ? 0x1p-24 : 0x1p-133; }

constexpr AdamScalars scalars{0.37f, 0.9f, 0.1f, 0.999f, 1e-3f, 0.9998f, 2e-2f, 31.6f, 1e-8f};
}  // namespace

TEST_CASE("adam: the same bits") {
  everywhere([](Both& both, Dtype dtype, std::int64_t size, std::int64_t offset) {
    for (const bool copied : {false, true}) {
      if (!copied && dtype != Dtype::fp32) continue;  // then the weights are the parameters
      Random random;
      const Twin grads(dtype, size, offset, random), weights(Dtype::fp32, size, offset, random);
      const Twin momentum(Dtype::fp32, size, offset, random);
      const Twin variance(Dtype::fp32, size, offset, [&] { return std::abs(random()); });
      const Twin params(dtype, size, offset);
      both.run([&](Side& on) {
        const AdamState slice{on(weights), on(momentum), on(variance),
                              copied ? on(params) : View{}};
        for (int step = 0; step < 3; ++step) on->adam(scalars, slice, on(grads));
      });
      for (const Twin* twin : {&weights, &momentum, &variance, &params, &grads}) {
        twin->check_same_bits("adam");
      }
    }
  });
}

TEST_CASE("adam: more than 2^31 elements") {
  const std::int64_t size = (std::int64_t{1} << 31) + 1001;
  if (gpu().available() < 17 * size) {
    why_skipped = fmt::format("more than 2^31 elements: this GPU has not the {} bytes", 16 * size);
    return;
  }
  const Generator random(fresh_seed(), RandomStream::weights);
  const auto kernels = make_kernels(gpu());
  const Tensor weights = on_gpu(size), grads = on_gpu(size);
  const Tensor momentum = on_gpu(size), variance = on_gpu(size);
  kernels->initialise(weights.view(), random, 0, 1, 0);
  kernels->initialise(grads.view(), random, 7, 1, 0);
  const AdamState slice{weights.view(), momentum.view(), variance.view()};
  kernels->adam(scalars, slice, grads.view());
  wait_for(kernels->record());
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
  everywhere([](Both& both, Dtype dtype, std::int64_t size, std::int64_t offset) {
    const Twin values(dtype, size, offset, Random());
    const Twin copied(dtype, size, offset), initial(dtype, size, offset);
    const Generator weights(fresh_seed(), RandomStream::weights);
    both.run([&](Side& on) {
      on->divide(on(values), 3);
      on->copy(on(values), on(copied));
      on->initialise(on(initial), weights, std::uint64_t{1} << 40, 0.3f, 0.5f);
    });
    values.check_same_bits("divide");
    copied.check_same_bits("copy");
    initial.check_same_bits("initialise");
  });
}

TEST_CASE("ordered mean: the same bits, whoever I am, stored and added") {
  everywhere([](Both& both, Dtype dtype, std::int64_t size, std::int64_t offset) {
    Random random;
    // Of different magnitude, so that another order would show.
    const auto uneven = [&] { return std::ldexp(random(), static_cast<int>(4 * random())); };
    for (const int ranks : {1, 2, 3, 5}) {
      for (const Write write : writes) {
        const int rank = static_cast<int>(size) % ranks;
        const Twin own(dtype, size, offset, uneven);
        const Twin received(dtype, size * (ranks - 1), offset, uneven);
        const Twin shard(dtype, size, offset, uneven);
        both.run([&](Side& on) {
          on->ordered_mean(on(own), rank, on(received), on(shard), write);
          on->ordered_mean(on(own), rank, on(received), on(own), write);
        });
        shard.check_same_bits("ordered mean elsewhere");
        own.check_same_bits("ordered mean in place");
      }
    }
  });
}

TEST_CASE("squared norm, squared error: the same gradients, both sums right to their rounding") {
  const auto check = [](Both& both, Dtype dtype, std::int64_t size, std::int64_t offset) {
    const Twin outputs(dtype, size, offset, Random()), targets(Dtype::fp32, size, offset, Random());
    const Twin delta(dtype, size, offset);
    // Forgets both sums, then adds to each twice.
    both.run([&](Side& on) {
      for (int i = 0; i < 3; ++i) {
        if (i == 1) on->clear(on.sums);
        on->squared_norm(on(outputs), on.sums);
        on->squared_error(on(outputs), on(targets), 8, on(delta), on.sums);
      }
    });
    delta.check_same_bits("delta");
    // All terms are positive: a sum of n of them in any order is right to n half units of double.
    const double bound = 2 * static_cast<double>(2 * size + 1) * 0x1p-53;
    const Totals cpu = both.cpu.sums.totals, gpu = both.gpu.sums.totals;
    CHECK(std::abs(gpu.squares - cpu.squares) <= bound * cpu.squares);
    CHECK(std::abs(gpu.loss - cpu.loss) <= bound * cpu.loss);
  };
  everywhere(check);
  Both both;
  check(both, Dtype::fp32, 5 * (1 << 19) + 3, 0);  // several packs a thread
}

TEST_CASE("samples: the same bits") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t rows : {1, 5, 16, 17}) {
      Both both;
      Random random;
      constexpr std::int64_t length = 1000, code_size = 3, context = 8;
      const Twin text(Dtype::fp32, length / 4, 0, random);  // any bytes
      const Twin codes(Dtype::fp32, 256 * code_size, 0, random);
      const Twin inputs(dtype, rows * context * code_size, 1), classes(Dtype::fp32, rows, 1);
      const Generator positions(fresh_seed(), RandomStream::positions);
      both.run([&](Side& on) {
        on->text_samples({on(text).data, length, 1, context, positions}, on(codes), 77, on(inputs),
                         on(classes));
      });
      inputs.check_same_bits("text inputs");
      classes.check_same_bits("text targets");
      for (const std::int64_t width : {1, 7, 128, 300}) {
        const Twin first(Dtype::fp32, width * TeacherSource::hidden, 0, random);
        const Twin second(Dtype::fp32, TeacherSource::hidden * 9, 0, random);
        const Twin numbers(dtype, rows * width, 1), targets(Dtype::fp32, rows * 9, 1);
        const Generator of_inputs(fresh_seed(), RandomStream::inputs);
        both.run([&](Side& on) {
          on->teacher_samples({on(first), on(second), width, 9, of_inputs}, std::int64_t{1} << 33,
                              on(numbers), on(targets));
        });
        numbers.check_same_bits("teacher inputs");
        targets.check_same_bits("teacher targets");
      }
    }
  }
}

TEST_CASE("a decoder's rows, moved, looked up, turned, gated, added: the same bits") {
  for (const Dtype dtype : dtypes) {
    const auto check = [=](std::int64_t tokens, std::int64_t groups, std::int64_t of_group,
                           std::int64_t size, std::int64_t offset) {
      INFO(std::string(name_of(dtype)), ", ", tokens, " tokens, heads of ", size);
      const HeadsShape shape{2, tokens, groups, of_group, size};
      const std::int64_t rows = 2 * tokens, width = groups * of_group * size, wide = width + size;
      Both both;
      Random random;
      const Twin file(Dtype::fp32, 500, 0, random);  // any bytes
      const Twin numbers(Dtype::fp32, rows, 0), targets(Dtype::fp32, rows, 1);
      const Twin some(Dtype::fp32, rows, 0, [&] { return std::floor(4 + 4 * random()); });
      const Twin table(dtype, 9 * width, offset, random), found(dtype, rows * width, offset);
      const Twin grads(dtype, 9 * width + 5, offset, random);
      const Twin turns(Dtype::fp32, tokens * size, 0, random), plain(dtype, rows * width, offset);
      const Twin matrix(dtype, rows * wide, offset, random), back(dtype, rows * wide, offset);
      const Twin pair(dtype, rows * 2 * wide, offset, random), gated(dtype, rows * wide, offset);
      const Twin delta(dtype, rows * wide, offset, random);
      both.run([&](Side& on) {
        on->reserve_products(product_room);
        for (const std::int64_t bytes : {1, 2}) {
          on->token_samples({on(file).data, 2000 / bytes, bytes, tokens, {7, RandomStream::codes}},
                            std::int64_t{1} << 40, on(numbers), on(targets));
        }
        on->embed(on(some), on(table), on(found));
        for (const Write write : writes) {
          View used = on(grads);
          used.used = 9 * width;
          on->embed_backward(on(some), on(found), used, write);
        }
        const Matrix from{on(matrix).part(size, rows * wide - size), wide};
        const Matrix to{on(back).part(size, rows * wide - size), wide};
        on->split_heads(shape, from, on(turns), on(found));
        on->split_heads(shape, from, {}, on(plain));
        on->merge_heads(shape, on(plain), on(turns), to);
        on->merge_heads(shape, on(found), {}, from);
        on->swiglu(on(pair), wide, on(gated));
        on->swiglu_backward(on(delta), wide, on(pair));
        on->add(on(gated), on(delta));
      });
      for (const Twin* twin :
           {&numbers, &targets, &found, &grads, &plain, &matrix, &back, &pair, &gated, &delta}) {
        twin->check_same_bits("what a decoder moves");
      }
      CHECK(found.on_cpu() != plain.on_cpu());  // what turns is turned
    };
    check(5, 1, 1, 2, 0), check(64, 2, 3, 16, 0), check(70, 3, 2, 8, 0), check(33, 2, 1, 8, 3);
  }
}

TEST_CASE("a decoder's sums of rows: within what sums in another order may differ") {
  for (const Dtype dtype : dtypes) {
    // Each side's sums are right to gamma times the sum of absolute terms, and what is made of
    // them is rounded `roundings` times.
    const double unit = unit_roundoff(dtype);
    const auto bound = [&](double size, std::int64_t terms, int roundings) {
      return 2 * gamma_of(terms) * size + roundings * (unit * 1.01 * size + tiny(dtype));
    };
    const auto norms = [=](std::int64_t rows, std::int64_t columns, std::int64_t offset) {
      INFO(std::string(name_of(dtype)), ", ", rows, " x ", columns);
      Both both;
      Random random;
      const Twin x(dtype, rows * columns, offset, random), gain(dtype, columns, offset, random);
      const Twin y(dtype, rows * columns, offset), dy(dtype, rows * columns, offset, random);
      const Twin dx(dtype, rows * columns, offset, random), grads(dtype, columns, offset, random);
      const std::vector<float> in = x.on_cpu(), g = gain.on_cpu(), d = dy.on_cpu();
      const std::vector<float> old = dx.on_cpu(), old_grads = grads.on_cpu();
      both.run([&](Side& on) {
        on->reserve_products(product_room);
        on->rms_norm(on(x), on(gain), on(y));
        on->rms_norm_backward(on(dy), on(gain), on(x), on(dx), Write::add, on(grads), Write::add);
      });
      std::vector<double> root(rows), common(rows);  // of the mean square; of mean |dy gain x|
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        root[i / columns] += double{in[i]} * in[i] / columns;
        common[i / columns] += std::abs(double{d[i]} * g[i % columns] * in[i] / columns);
      }
      for (double& each : root) each = std::sqrt(each + 1e-6);
      const auto normed = [&](std::int64_t i) { return std::abs(in[i] / root[i / columns]); };
      y.check_near("a norm", [&](std::int64_t i) {
        return bound(normed(i) * std::abs(g[i % columns]), columns, 3);
      });
      dy.check_near("terms of a gain's gradient",
                    [&](std::int64_t i) { return bound(normed(i) * std::abs(d[i]), columns, 3); });
      dx.check_near("a norm's gradient", [&](std::int64_t i) {
        const double own = std::abs(double{d[i]} * g[i % columns]) / root[i / columns];
        const double r = root[i / columns];
        return bound(std::abs(old[i]) + own + normed(i) * common[i / columns] / (r * r),
                     2 * columns, 4);
      });
      grads.check_near("a gain's gradient", [&](std::int64_t j) {
        double size = std::abs(old_grads[j]);
        for (std::int64_t i = j; i < rows * columns; i += columns)
          size += normed(i) * std::abs(d[i]);
        return bound(size, rows + columns, 6);
      });
    };
    norms(1, 1, 0), norms(3, 7, 1), norms(40, 64, 0), norms(2, 304, 3), norms(300, 200, 0);
    const auto attention = [=](std::int64_t tokens, std::int64_t queries, std::int64_t size,
                               std::int64_t offset) {
      INFO(std::string(name_of(dtype)), ", ", tokens, " tokens, ", queries, " queries of each");
      const CausalRows causal{tokens, queries, tokens / 2, tokens - tokens % 2};
      const std::int64_t rows = 2 * tokens * queries, count = 2;
      Both both;
      Random random;
      const Twin scores(dtype, rows * tokens, offset, random);
      const Twin shares(dtype, rows * tokens, offset, [&] { return std::abs(random()); });
      const Twin delta(dtype, rows * tokens, offset, random);
      const Twin values(dtype, count * tokens * size, 0, random),
          mixed(dtype, rows * (size + 8), 0);
      const Twin product(dtype, count * tokens * tokens, 0);
      const std::vector<float> p = shares.on_cpu(), d = delta.on_cpu(), v = values.on_cpu();
      both.run([&](Side& on) {
        on->reserve_products(product_room);
        on->causal_softmax(causal, on(scores), 0.7f);
        on->softmax_backward(causal, on(shares), 0.7f, on(delta));
        on->products(count, queries * tokens, tokens, size,
                     {{on(shares), tokens}, queries * tokens * tokens},
                     {{on(values), size}, tokens * size},
                     {{on(mixed), size + 8}, queries * tokens * (size + 8)});
        on->products(count, tokens, queries * tokens, tokens - 1,  // of parts, transposed
                     {{on(shares), tokens, true}, queries * tokens * tokens},
                     {{on(shares), tokens}, queries * tokens * tokens},
                     {{on(product), tokens}, tokens * tokens});
      });
      const std::vector<float> softmax = scores.on_cpu();
      scores.check_near("shares", [&](std::int64_t i) {
        const std::int64_t token = i / tokens / queries % tokens;
        const bool formed = causal.first <= token && token < causal.end;
        return formed && i % tokens <= token ? bound(softmax[i], tokens, 3) : 0.0;  // else the same
      });
      delta.check_near("gradients of scores", [&](std::int64_t i) {
        const std::int64_t row = i / tokens, token = row / queries % tokens, end = causal.end;
        if (token < causal.first || token >= end || i % tokens >= end) return 0.0;
        double size = std::abs(d[i]);
        for (std::int64_t k = row * tokens; k < row * tokens + end; ++k)
          size += std::abs(p[k] * d[k]);
        return bound(p[i] * size, tokens, 4);
      });
      mixed.check_near("products", [&](std::int64_t i) {
        const std::int64_t row = i / (size + 8), column = i % (size + 8);
        if (column >= size) return 0.0;
        double all = 0;
        for (std::int64_t k = 0; k < tokens; ++k) {
          all += std::abs(p[row * tokens + k] *
                          v[(row / (queries * tokens) * tokens + k) * size + column]);
        }
        return bound(all, tokens, 2);
      });
      product.check_near("products of parts, transposed", [&](std::int64_t i) {
        const std::int64_t matrix = i / (tokens * tokens), row = i / tokens % tokens,
                           column = i % tokens;
        if (column == tokens - 1) return 0.0;
        double all = 0;
        for (std::int64_t k = matrix * queries * tokens; k < (matrix + 1) * queries * tokens; ++k) {
          all += std::abs(p[k * tokens + row] * p[k * tokens + column]);
        }
        return bound(all, queries * tokens, 2);
      });
    };
    attention(5, 3, 2, 1), attention(64, 1, 8, 0), attention(160, 2, 16, 0);
  }
}

TEST_CASE("a layer on any numbers: within what sums in another order may differ") {
  const auto check = [](Dtype dtype, const LinearShape& s, Write write) {
    const std::int64_t weights = s.weights(), used = weights + (s.bias ? s.outputs : 0);
    const std::int64_t padded = used + 5;
    Random random;
    const Twin inputs(dtype, s.batch * s.inputs, 0, random), params(dtype, padded, 0, random);
    const Twin delta(dtype, s.batch * s.outputs, 0, random), grads(dtype, padded, 0, random);
    const Twin outputs(dtype, s.batch * s.outputs, 0), input_grads(dtype, s.batch * s.inputs, 0);
    const Twin cut_off(dtype, s.batch * s.outputs, 0, random);  // the same outputs for both
    const std::vector<float> x = inputs.on_cpu(), w = params.on_cpu(), g = grads.on_cpu();
    const bool adds = write == Write::add, relu = adds;
    Both both;
    both.run([&](Side& on) {
      on->reserve_products(product_room);
      View used_grads = on(grads);
      used_grads.used = used;
      on->linear_forward(s, on(inputs), on(params), on(outputs), relu);
      on->linear_backward_params(s, relu ? on(cut_off) : View{}, on(delta), on(inputs), used_grads,
                                 write);
      on->linear_backward_input(s, on(delta), on(params), on(input_grads));
    });
    delta.check_same_bits("gradients of outputs");
    const std::vector<float> dy = delta.on_cpu();
    // Each side's sum is right to gamma times the sum of absolute terms. Each then rounds an output
    // once, and a gradient once, or twice where it is added; any rounding is half a unit of at most
    // that sum and half a step of the tiniest numbers.
    const double unit = unit_roundoff(dtype);
    const auto bound = [&](double size, std::int64_t terms, int roundings, auto term) {
      for (std::int64_t k = 0; k < terms; ++k) size += std::abs(static_cast<double>(term(k)));
      return 2 * gamma_of(terms) * size + roundings * (unit * 1.01 * size + tiny(dtype));
    };
    outputs.check_near("outputs", [&](std::int64_t at) {
      const std::int64_t i = at / s.outputs, o = at % s.outputs;
      return bound(s.bias ? std::abs(w[weights + o]) : 0, s.inputs, 2, [&](std::int64_t k) {
        return double{x[i * s.inputs + k]} * w[o * s.inputs + k];
      });
    });
    input_grads.check_near("gradients of inputs", [&](std::int64_t at) {
      const std::int64_t i = at / s.inputs, k = at % s.inputs;
      return bound(0, s.outputs, 2, [&](std::int64_t o) {
        return double{dy[i * s.outputs + o]} * w[o * s.inputs + k];
      });
    });
    grads.check_near("gradients", [&](std::int64_t at) {
      if (at >= used) return 0.0;  // padding
      return bound(adds ? std::abs(g[at]) : 0, s.batch, adds ? 4 : 2, [&](std::int64_t i) {
        return at < weights
                   ? double{dy[i * s.outputs + at / s.inputs]} * x[i * s.inputs + at % s.inputs]
                   : dy[i * s.outputs + at - weights];
      });
    });
  };
  constexpr std::array<std::int64_t, 3> shapes[] = {{1, 1, 1},    {5, 7, 9},     {17, 24, 8},
                                                    {33, 8, 64},  {300, 40, 72}, {3, 1300, 5},
                                                    {4, 200, 20}, {8500, 3, 17}};
  for (const Dtype dtype : dtypes) {
    for (const auto& [batch, inputs, outputs] : shapes) {
      INFO("seed ", fresh_seed(), " dtype ", std::string(name_of(dtype)), " batch ", batch);
      for (const Write write : writes) {
        for (const bool bias : {true, false}) check(dtype, {batch, inputs, outputs, bias}, write);
      }
    }
  }
}

TEST_CASE("a layer in fp32: its bits do not depend on how many multiprocessors its products get") {
  constexpr LinearShape shape{512, 1000, 520, true};  // cuBLAS would split such sums, or not
  constexpr Dtype dtype = Dtype::fp32;  // in which 01 equals 02 on several ranks
  const std::int64_t used = shape.weights() + shape.outputs;
  Random random;
  const Twin x(dtype, shape.batch * shape.inputs, 0, random), params(dtype, used, 0, random);
  const Twin dy(dtype, shape.batch * shape.outputs, 0, random), grads(dtype, used, 0);
  const Twin y(dtype, shape.batch * shape.outputs, 0), dx(dtype, x.on_cpu().size(), 0);
  std::vector<std::array<std::vector<std::uint32_t>, 3>> results;
  for (const bool others : {false, true}) {
    const std::unique_ptr<Device> device = make_gpu(0, others);
    Side gpu(*device);
    gpu->reserve_products(product_room_bytes);
    gpu->linear_forward(shape, gpu(x), gpu(params), gpu(y), true);
    gpu->linear_backward_params(shape, View{}, gpu(dy), gpu(x), gpu(grads), Write::overwrite);
    gpu->linear_backward_input(shape, gpu(dy), gpu(params), gpu(dx));
    wait_for(gpu->record());
    results.push_back({bits(gpu(y)), bits(gpu(grads)), bits(gpu(dx))});
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("a layer: a gradient written has the bits of one added to 0, and all of its sum") {
  constexpr std::int64_t inputs = 40, outputs = 72;  // several pieces of product_room
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t batch : {300, 4100}) {
      Random random;
      // Of all samples, or of the last ones alone, which a product in pieces might leave out.
      for (const std::int64_t of_last : {batch, batch % 64}) {
        const auto last = [&](std::int64_t width) {
          return [&, i = std::int64_t{0}, zeros = (batch - of_last) * width]() mutable {
            return i++ < zeros ? 0.0f : of_last < batch ? 1.0f : random();
          };
        };
        const Twin x(dtype, batch * inputs, 0, last(inputs));
        const Twin dy(dtype, batch * outputs, 0, last(outputs));
        std::vector<std::vector<std::uint32_t>> written;
        for (const Write write : writes) {
          const Twin sum(dtype, inputs * outputs, 0, [] { return 0.0f; });
          Side gpu(test::gpu());
          gpu->reserve_products(product_room);
          gpu->linear_backward_params({batch, inputs, outputs, false}, View{}, gpu(dy), gpu(x),
                                      gpu(sum), write);
          wait_for(gpu->record());
          written.push_back(bits(gpu(sum)));
          if (of_last < batch) {
            for (const float x : values(gpu(sum))) REQUIRE(x == static_cast<float>(of_last));
          }
        }
        CHECK(written[0] == written[1]);
      }
    }
  }
}

TEST_CASE("cross-entropy: within what another order may differ, and of two classes the same bits") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t count : {1, 2, 5, 256, 1100}) {
      const bool many = count == 5 && dtype == Dtype::fp32;  // more rows than blocks
      for (const std::int64_t rows : {1, 3, many ? 1030 : 9}) {
        Both both;
        Random random;
        const bool same = count <= 2;  // a sum of two terms has no order
        const float spread = same ? 55 : 3;  // exponents down to the underflow, or far from it
        const Twin outputs(dtype, rows * count, 0, [&] { return spread * random(); });
        const Twin targets(Dtype::fp32, rows, 0, [&] {
          return std::floor(static_cast<float>(count) * (random() + 1) / 2);
        });
        const Twin delta(dtype, rows * count, 0);
        constexpr float scale = 16;
        both.run([&](Side& on) {
          for (int i = 0; i < 2; ++i) {
            on->cross_entropy(on(outputs), on(targets), rows, scale, on(delta), on.sums);
          }
        });
        const double off = both.gpu.sums.totals.loss - both.cpu.sums.totals.loss;
        if (same) {
          delta.check_same_bits("delta");
          // A mean in double over the rows, twice, in another order; a row's loss is below 111.
          CHECK(std::abs(off) <= 4 * static_cast<double>(rows + 1) * 0x1p-53 * 111);
          continue;
        }
        // A sum of `count` positive terms adds count half units a side; a division, a difference
        // from 1 and a product follow. In all at most e on a probability of at most 1.
        const double e = 2 * gamma_of(count) + 3 * 0x1p-23;
        const double factor = scale / static_cast<double>(rows);
        delta.check_near("delta", [&](std::int64_t) {
          return factor * (e + 2 * unit_roundoff(dtype)) + tiny(dtype);
        });
        // log(sum) <= log(count) moves by e and by a unit of itself; two additions of numbers of
        // at most 3 follow.
        const double size = std::log(static_cast<double>(count)) + 9;
        CHECK(std::abs(off) <= 2 * (e + 3 * 0x1p-23 * size));
      }
    }
  }
}

TEST_CASE("column sums, which a layer's bias has for a gradient: exact of small integers") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t columns : {17, 136}) {  // one by one, and in packs
      for (const std::int64_t rows : {1, 5, 300, 8500}) {
        Side gpu(test::gpu());
        Random random;
        const LinearShape shape{rows, 0, columns, true};  // no inputs, so no product
        const Twin delta(dtype, rows * columns, 0, [&] { return std::round(0.6f * random()); });
        const Twin outputs(dtype, rows * columns, 0, random), bias(dtype, columns, 0);
        std::vector<float> all = delta.on_cpu();
        const std::vector<float> y = outputs.on_cpu();
        gpu->reserve_products(product_room_bytes);
        for (const bool relu : {false, true}) {
          gpu->linear_backward_params(shape, relu ? gpu(outputs) : View{}, gpu(delta),
                                      gpu(delta).part(0, 0), gpu(bias), Write::overwrite);
          wait_for(gpu->record());
          std::vector<float> expected(columns);
          for (std::size_t i = 0; i < all.size(); ++i) {
            if (relu && y[i] <= 0) all[i] = 0;
            expected[i % columns] += all[i];
          }
          CHECK(values(gpu(bias)) == expected);
          CHECK(values(gpu(delta)) == all);
        }
      }
    }
  }
}

TEST_CASE("copies: those of page-locked memory are not waited for, those of ordinary arrive too") {
  constexpr std::int64_t size = 1 << 25, bytes = 1 << 20;
  const Buffer page_locked(gpu().host(), Kind::communication, bytes, true, Memory::page_locked);
  const Buffer ordinary(gpu().host(), Kind::communication, bytes, true);
  const Tensor values = on_gpu(size), back = on_gpu(size);
  const auto on = make_kernels(gpu());
  on->initialise(values.view(), Generator(fresh_seed(), RandomStream::inputs), 0, 1, 0);
  for (int i = 0; i < 10; ++i) on->divide(values.view(), 3);
  const Mark divided = on->record();
  on->copy_bytes(page_locked.data(), values.view().data, bytes);
  on->copy_bytes(back.view().data, page_locked.data(), bytes);
  CHECK(!divided->passed());
  const View elsewhere = back.view().part(size / 2, bytes / 4);
  on->copy_bytes(ordinary.data(), values.view().data, bytes);
  on->copy_bytes(elsewhere.data, ordinary.data(), bytes);
  wait_for(on->record());
  const auto expected = bits(values.view().part(0, bytes / 4));
  CHECK(bits(back.view().part(0, bytes / 4)) == expected);
  CHECK(bits(elsewhere) == expected);
}

TEST_CASE("what a GPU has not passed yet is taken later, with the GPU's times, and none is lost") {
  constexpr int tasks = 10;
  Recorder recorder(gpu(), true, false, false);
  Stream stream("test", gpu());
  const Tensor values = on_gpu(1 << 25);
  const auto begin = Clock::now();
  for (int i = 0; i < tasks; ++i) {
    stream.run({.what = "a long division", .layer = i},
               [&, &on = stream.kernels()] { on.divide(values.view(), 3); });
  }
  const auto told = Clock::now();
  std::vector<Slice> slices = recorder.take();
  CHECK(slices.size() < tasks);
  stream.synchronise();
  const auto end = Clock::now();
  std::ranges::copy_if(recorder.take(), std::back_inserter(slices), &Slice::track);  // no host's
  REQUIRE(slices.size() == tasks);
  CHECK(recorder.take().empty());
  auto before = slices[0].begin.time();
  for (int i = 0; i < tasks; ++i) {
    CHECK(slices[i].work.layer == i);
    CHECK(before <= slices[i].begin.time());
    before = slices[i].end.time();
    CHECK(slices[i].begin.time() < before);
  }
  // The two clocks are set by each other as well as the host sees the GPU get somewhere.
  constexpr auto tolerance = std::chrono::milliseconds(5);
  CHECK(slices.front().begin.time() > begin - tolerance);
  CHECK(before > told);
  CHECK(before < end + tolerance);
}

TEST_CASE("a mark's time is the host's, to half a millisecond") {
  for (int reading = 0; reading < 8; ++reading) {
    const std::unique_ptr<Device> device = make_gpu();  // for each both clocks are read anew
    const auto on = make_kernels(*device);
    const auto begin = Clock::now();
    const Mark mark = on->record_time();
    wait_for(mark);
    const auto end = Clock::now();
    constexpr auto tolerance = std::chrono::microseconds(500);
    CHECK(mark->time() > begin - tolerance);
    CHECK(mark->time() < end + tolerance);
  }
}

TEST_CASE("a product finds room for cuBLAS where a run takes all that it may") {
  constexpr LinearShape shape{5, 7, 9, true};
  const Twin x(Dtype::fp32, 35, 0, [] { return 1.0f; }), y(Dtype::fp32, 45, 0);
  const Twin params(Dtype::fp32, 72, 0, [] { return 1.0f; });
  Side on(gpu());
  on->reserve_products(product_room);
  const Buffer rest(gpu(), Kind::data, gpu().available() - libraries_bytes, true);
  on->linear_forward(shape, on(x), on(params), on(y), false);
  wait_for(on->record());
  CHECK(values(on(y)) == std::vector<float>(45, 8));
}

TEST_CASE("a GPU's memory and its host's are two limits") {
  const Options options{.task = Task::mlp, .width = 512, .layers = 16, .dtype = Dtype::bf16};
  const Layout layout = layout_of(options, 0, 1);
  const Prediction plan = predict(card("07"), options, DeviceType::cuda, layout);
  const auto peak = &Prediction::Bytes::peak;
  const std::int64_t on_host = plan.sum(peak, Place::host), needed = plan.sum(peak);
  const auto check = [&](const char* number, int sharing, int sharing_host) {
    const Choice choice{.sharing = sharing, .sharing_host = sharing_host};
    return check_memory(card(number), options, choice, gpu(), layout);
  };
  // Twice too many.
  const auto on_machine = static_cast<int>(2 * host().available() / on_host);
  const auto on_gpu = static_cast<int>(2 * gpu().available() / needed);
  CHECK(check("07", 1, 1) == needed);
  const std::string of_host = grouped(on_host) + " bytes of the host's memory, ";
  check_refused(ExitCode::resources,
                {fmt::format("each rank needs {}{} on this machine share ", of_host, on_machine),
                 "available: use fewer or smaller layers or batches, or more machines"},
                [&] { check("07", 1, on_machine); });
  check("06", 1, on_machine);  // takes none of it
  const std::string of_gpu =
      fmt::format("{} bytes, {} on this GPU share ", grouped(needed), on_gpu);
  check_refused(ExitCode::resources, {"each rank needs " + of_gpu, "or more GPUs"},
                [&] { check("07", on_gpu, 1); });
}
}  // namespace zero::test
