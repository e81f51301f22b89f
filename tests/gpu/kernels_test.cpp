// SPDX-License-Identifier: MIT
// Compares every kernel of the GPU with the CPU's: from the same fresh random operands both must
// make equal numbers; only a loss, a sum in double, may be off by its roundings. Where the GPU adds
// in fp32 in another order, operands are such, mostly small whole numbers, that any order has the
// same sum. Views begin anywhere; outputs are poisoned first; what lies around a view must stay.
#include "compute/kernels.hpp"

#include <cmath>
#include <deque>
#include <random>

#include "compute/adam_element.hpp"
#include "report/prediction.hpp"
#include "tests/count_listener.hpp"
#include "tests/unit/checks.hpp"
#include "trace/recorder.hpp"

namespace zero::test {
namespace {
constexpr std::int64_t margin = 16;  // elements that lie before, and behind, a Twin's own
constexpr Write writes[] = {Write::overwrite, Write::add};

/// The seed of this run: another one in every run. A failure prints it.
std::uint64_t fresh_seed() {
  static const std::uint64_t seed = std::random_device()();
  return seed;
}

/// The next random element for an operand, in [-1, 1).
float any() {
  static std::uint64_t next = 0;
  return Generator(fresh_seed(), RandomStream::inputs).uniform(next++);
}
float positive() { return std::abs(any()); }
float poison() { return 12345; }
/// Makes random whole numbers in [-most, most].
auto whole(float most) {
  return [=] { return std::round(most * any()); };
}

Device& gpu() {
  static const std::unique_ptr<Device> device = make_gpu();
  return *device;
}

Tensor on_gpu(std::int64_t size) { return Tensor(gpu(), Kind::data, Dtype::fp32, size); }

/// The same elements in the memory of the CPU and of the GPU, with a margin around them.
struct Twin {
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset, auto value)
      : size(size),
        first(margin + offset),
        cpu(test::cpu(), Kind::data, dtype, size + 2 * margin + offset),
        gpu(test::gpu(), Kind::data, dtype, cpu.size()) {
    fill(cpu.view(), poison());
    fill(on(test::cpu()), [&](std::int64_t) { return value(); });
    test::gpu().copy(gpu.view().data, cpu.view().data, cpu.view().bytes());
  }
  View on(const Device& device) {
    return (device.type == DeviceType::cpu ? cpu : gpu).view().part(first, size);
  }

  const std::int64_t size, first;
  Tensor cpu, gpu;
};

/// The CPU or the GPU, with kernels and sums. A Side `on` gives a Twin's view there: on(twin).
struct Side {
  explicit Side(Device& where) : device(where), kernels(make_kernels(where)), sums(where) {
    kernels->clear(sums);
  }
  View operator()(Twin& twin) const { return twin.on(device); }
  Kernels* operator->() const { return kernels.get(); }

  Device& device;
  std::unique_ptr<Kernels> kernels;
  Sums sums;
};

/// Bytes of the GPU's room for products. A program has 32 MiB; here it is so small that a gradient
/// of more bytes, even a row of 1300 elements, is made in several parts.
constexpr std::int64_t product_room = 2400;

/// Operands with which CPU and GPU do the same work. run() then compares all operands.
struct Trial {
  explicit Trial(Dtype dtype, std::int64_t offset = 0) : dtype(dtype), offset(offset) {}

  Twin& operator()(std::int64_t size, auto value) {
    return twins.emplace_back(dtype, size, offset, value);
  }
  Twin& fp32(std::int64_t size, auto value) {
    return twins.emplace_back(Dtype::fp32, size, offset, value);
  }

  void run(auto work) {
    for (Side* side : {&cpu, &gpu}) {
      (*side)->reserve_products(product_room);
      work(*side);
      (*side)->fetch(side->sums);
    }
    INFO("seed ", fresh_seed(), ", ", std::string(name_of(dtype)), ", offset ", offset);
    for (std::size_t number = 0; number < twins.size(); ++number) {
      Twin& twin = twins[number];
      const auto ours = values(twin.gpu.view()), expected = values(twin.cpu.view());
      const auto [a, b] = std::ranges::mismatch(ours, expected);
      if (a == ours.end()) continue;
      FAIL_CHECK("operand ", number, ", element ", a - ours.begin() - twin.first, " of ", twin.size,
                 ": ", *a, ", the CPU has ", *b);
    }
  }

  const Dtype dtype;
  const std::int64_t offset;
  Side cpu{test::cpu()}, gpu{test::gpu()};
  std::deque<Twin> twins;
};

void everywhere(auto test) {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : {1, 7, 8, 9, 255, 256, 1000, 4099}) {
      for (const std::int64_t offset : {0, 1, 3}) test(dtype, size, offset);
    }
  }
}

constexpr AdamScalars scalars{0.37f, 0.9f, 0.1f, 0.999f, 1e-3f, 0.9998f, 2e-2f, 31.6f, 1e-8f};
}  // namespace

TEST_CASE("adam, with a copy of the weights and without") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    for (const bool copied : {false, true}) {
      if (!copied && dtype != Dtype::fp32) continue;  // only fp32 parameters can be the weights
      Trial both(dtype, offset);
      Twin &grads = both(size, any), &params = both(size, poison);
      Twin &weights = both.fp32(size, any), &momentum = both.fp32(size, any);
      Twin& variance = both.fp32(size, positive);
      both.run([&](Side& on) {
        const AdamState slice{on(weights), on(momentum), on(variance),
                              copied ? on(params) : View{}};
        for (int step = 0; step < 3; ++step) on->adam(scalars, slice, on(grads));
      });
    }
  });
}

TEST_CASE("divide, copy, initialise") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Trial both(dtype, offset);
    Twin &values = both(size, any), &copied = both(size, poison), &made = both(size, poison);
    const Generator weights(fresh_seed(), RandomStream::weights);
    both.run([&](Side& on) {
      on->divide(on(values), 3);
      on->copy(on(values), on(copied));
      on->initialise(on(made), weights, std::uint64_t{1} << 40, 0.3f, 0.5f);
    });
  });
}

TEST_CASE("more than 2^31 elements") {
  const std::int64_t size = (std::int64_t{1} << 31) + 1001;
  if (gpu().available() < 3 * size) {
    why_skipped = fmt::format("more than 2^31 elements: this GPU has not the {} bytes", 2 * size);
    return;
  }
  const Generator random(fresh_seed(), RandomStream::weights);
  const auto kernels = make_kernels(gpu());
  Tensor all(gpu(), Kind::data, Dtype::bf16, size);
  kernels->initialise(all.view(), random, 0, 1, 0);
  kernels->divide(all.view(), 3);
  wait_for(kernels->record());
  for (const std::int64_t first : {std::int64_t{0}, size / 2, size - 1000}) {
    const std::vector<float> ours = values(all.view().part(first, 1000));
    for (std::int64_t i = 0; i < 1000; ++i) {
      const float made = rounded(Dtype::bf16, random.uniform(first + i));
      REQUIRE(ours[i] == rounded(Dtype::bf16, made / 3));
    }
  }
}

TEST_CASE("ordered mean, for several ranks, elsewhere and in place") {
  everywhere([](Dtype dtype, std::int64_t size, std::int64_t offset) {
    // Elements of different magnitudes, so that another order of the ranks would show.
    const auto uneven = [] { return std::ldexp(any(), static_cast<int>(4 * any())); };
    for (const int ranks : {1, 2, 3, 5}) {
      for (const Write write : writes) {
        const int rank = static_cast<int>(size) % ranks;
        Trial both(dtype, offset);
        Twin &own = both(size, uneven), &received = both(size * (ranks - 1), uneven);
        Twin& shard = both(size, uneven);
        both.run([&](Side& on) {
          on->ordered_mean(on(own), rank, on(received), on(shard), write);
          on->ordered_mean(on(own), rank, on(received), on(own), write);
        });
      }
    }
  });
}

TEST_CASE("squared norm, squared error: both sums in double") {
  const auto check = [](Dtype dtype, std::int64_t size, std::int64_t offset) {
    Trial both(dtype, offset);
    // Sums of these squares are exact in double, and not in fp32.
    const auto large =
        whole(static_cast<float>(0.5 / unit_roundoff(dtype == Dtype::fp32 ? Dtype::fp16 : dtype)));
    Twin &outputs = both(size, large), &grad_output = both(size, poison);
    Twin& targets = both.fp32(size, any);
    // Adds to both sums, clears them, then adds to each twice.
    both.run([&](Side& on) {
      for (int i = 0; i < 3; ++i) {
        if (i == 1) on->clear(on.sums);
        on->squared_norm(on(outputs), on.sums);
        on->squared_error(on(outputs), on(targets), 8, on(grad_output), on.sums);
      }
    });
    const Totals cpu = both.cpu.sums.totals, gpu = both.gpu.sums.totals;
    CHECK(gpu.squares == cpu.squares);
    // No term is negative: in any order a sum of n has a relative error of at most n 2^-53.
    const double bound = 2 * static_cast<double>(2 * size + 1) * 0x1p-53;
    CHECK(std::abs(gpu.loss - cpu.loss) <= bound * cpu.loss);
  };
  everywhere(check);
  check(Dtype::fp32, 5 * (1 << 19) + 3, 0);  // so long that a thread adds several packs
}

TEST_CASE("samples of a text and of a teacher") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t rows : {1, 5, 16, 17}) {
      Trial both(dtype, 1);
      constexpr std::int64_t length = 1000, code_size = 3, context = 8;
      Twin &text = both.fp32(length / 4, any), &codes = both.fp32(256 * code_size, any);
      Twin& inputs = both(rows * context * code_size, poison);
      Twin& classes = both.fp32(rows, poison);
      const Generator positions(fresh_seed(), RandomStream::positions);
      both.run([&](Side& on) {
        on->text_samples({on(text).data, length, 1, context, positions}, on(codes), 77, on(inputs),
                         on(classes));
      });
      for (const std::int64_t width : {1, 7, 128, 300}) {
        Trial teacher(dtype, 1);
        Twin& first = teacher.fp32(width * TeacherSource::hidden, any);
        Twin& second = teacher.fp32(TeacherSource::hidden * 9, any);
        Twin& numbers = teacher(rows * width, poison);
        Twin& targets = teacher.fp32(rows * 9, poison);
        teacher.run([&](Side& on) {
          on->teacher_samples({on(first), on(second), width, 9, positions}, std::int64_t{1} << 33,
                              on(numbers), on(targets));
        });
      }
    }
  }
}

TEST_CASE("a decoder's rows, looked up, turned, moved, gated, added") {
  for (const Dtype dtype : dtypes) {
    const auto check = [=](std::int64_t tokens, std::int64_t kv_heads, std::int64_t heads_per_kv,
                           std::int64_t head_dim, std::int64_t offset) {
      const HeadsShape shape{2, tokens, kv_heads, heads_per_kv, head_dim};
      const std::int64_t rows = 2 * tokens, width = kv_heads * heads_per_kv * head_dim,
                         wide = width + head_dim;
      Trial both(dtype, offset);
      Twin &file = both.fp32(500, any),
           &some = both.fp32(rows, [] { return std::floor(4 + 4 * any()); });
      Twin &numbers = both.fp32(rows, poison), &targets = both.fp32(rows, poison);
      Twin &table = both(9 * width, any), &found = both(rows * width, poison);
      Twin &grads = both(9 * width + 5, any), &rope_cos_sin = both.fp32(tokens * head_dim, any);
      Twin &plain = both(rows * width, poison), &back = both(rows * wide, poison);
      Twin &matrix = both(rows * wide, any), &gate_up = both(rows * 2 * wide, any);
      Twin &gated = both(rows * wide, poison), &grad_output = both(rows * wide, any);
      both.run([&](Side& on) {
        for (const std::int64_t bytes : {1, 2}) {
          on->token_samples({on(file).data, 2000 / bytes, bytes, tokens, {7, RandomStream::codes}},
                            std::int64_t{1} << 40, on(numbers), on(targets));
        }
        on->embed(on(some), on(table), on(found));
        for (const Write write : writes) {
          View used = on(grads);
          used.used = 9 * width;
          on->embed_backward(on(some), on(grad_output).part(0, rows * width), used, write);
        }
        const Matrix from{on(matrix).part(head_dim, rows * wide - head_dim), wide};
        const Matrix to{on(back).part(head_dim, rows * wide - head_dim), wide};
        on->split_heads(shape, from, on(rope_cos_sin), on(found));
        on->split_heads(shape, from, {}, on(plain));
        on->merge_heads(shape, on(plain), on(rope_cos_sin), to);
        on->merge_heads(shape, on(found), {}, from);
        on->swiglu(on(gate_up), wide, on(gated));
        on->swiglu_backward(on(grad_output), wide, on(gate_up));
        on->add(on(gated), on(grad_output));
      });
      CHECK(values(found.cpu.view()) != values(plain.cpu.view()));  // rotation changes heads
    };
    check(5, 1, 1, 2, 0), check(64, 2, 3, 16, 0), check(70, 3, 2, 8, 0), check(33, 2, 1, 8, 3);
  }
}

TEST_CASE("a decoder's rows: the gradient of each token of a vocabulary") {
  const auto check = [](int vocabulary, std::int64_t count, std::int64_t width) {
    Trial both(Dtype::fp32);
    Twin& tokens = both(count, [=] { return std::floor(vocabulary * positive()); });
    Twin &dy = both(count * width, any), &grads = both(vocabulary * width, any);
    both.run([&](Side& on) {
      on->reserve_products(product_room_bytes);
      for (const Write write : writes) on->embed_backward(on(tokens), on(dy), on(grads), write);
    });
  };
  check(256, 256, 3), check(257, 1000, 8), check(65536, 3000, 2);
  check(1, 5000, 2048);  // one token in all rows: a simulated GPU dies if one block adds them alone
}

TEST_CASE("a decoder's norms") {
  for (const Dtype dtype : dtypes) {
    const auto check = [=](std::int64_t rows, std::int64_t columns, std::int64_t offset) {
      Trial both(dtype, offset);
      Twin &x = both(rows * columns, whole(7)), &y = both(rows * columns, poison);
      // The root mean square of a row is a power of 2, so large that adding 10^-6 changes no bit.
      const auto power = [=, i = std::int64_t{0}]() mutable {
        return std::copysign(std::ldexp(1.0f, 10 + i++ / columns % 2), any());
      };
      Twin &gain = both(columns, whole(3)), &large = both(rows * columns, power);
      Twin &dy = both(rows * columns, whole(3)), &dx = both(rows * columns, any);
      Twin& grads = both(columns, any);
      both.run([&](Side& on) {
        on->rms_norm(on(x), on(gain), on(y));
        on->rms_norm_backward(on(dy), on(gain), on(large), on(dx), Write::add, on(grads),
                              Write::add);
      });
    };
    check(1, 1, 0), check(3, 7, 1), check(40, 64, 0), check(2, 304, 3), check(300, 200, 0);
  }
}

TEST_CASE("a decoder's attention") {
  for (const Dtype dtype : dtypes) {
    const auto check = [=](std::int64_t tokens, std::int64_t q_per_kv, std::int64_t head_dim,
                           std::int64_t offset) {
      const CausalRows causal{tokens, q_per_kv, tokens / 2, tokens - tokens % 2};
      const std::int64_t rows = 2 * tokens * q_per_kv, count = 2, row = head_dim + 8;
      Trial both(dtype, offset);
      // Two exps have the same sum in any order. If a row has more, each exp is 1 or 0, so that any
      // order has the same sum.
      const auto score = [=] { return tokens > 2 ? (any() < 0 ? 0.0f : -300.0f) : any(); };
      Twin &scores = both(rows * tokens, score), &grad_output = both(rows * tokens, whole(7));
      Twin& attention_probs = both(rows * tokens, [] { return std::round(7 * positive()); });
      Twin &values = both(count * tokens * head_dim, whole(7)), &mixed = both(rows * row, poison);
      Twin& product = both(count * tokens * tokens, poison);
      both.run([&](Side& on) {
        on->causal_softmax(causal, on(scores), 0.7f);
        on->softmax_backward(causal, on(attention_probs), 0.7f, on(grad_output));
        on->products(count, q_per_kv * tokens, tokens, head_dim,
                     {{on(attention_probs), tokens}, q_per_kv * tokens * tokens},
                     {{on(values), head_dim}, tokens * head_dim},
                     {{on(mixed), row}, q_per_kv * tokens * row});
        on->products(count, tokens, q_per_kv * tokens, tokens - 1,  // transposed parts
                     {{on(attention_probs), tokens, true}, q_per_kv * tokens * tokens},
                     {{on(attention_probs), tokens}, q_per_kv * tokens * tokens},
                     {{on(product), tokens}, tokens * tokens});
      });
    };
    check(2, 3, 2, 1), check(5, 3, 2, 1), check(64, 1, 8, 0), check(160, 2, 16, 0);
  }
}

TEST_CASE("a layer") {
  constexpr std::array<std::int64_t, 3> shapes[] = {{1, 1, 1},    {5, 7, 9},     {17, 24, 8},
                                                    {33, 8, 64},  {300, 40, 72}, {3, 1300, 5},
                                                    {4, 200, 20}, {8500, 3, 17}, {5, 8, 73}};
  for (const Dtype dtype : dtypes) {
    for (const auto& [batch, inputs, outputs] : shapes) {
      for (const Write write : writes) {
        for (const bool bias : {true, false}) {
          const LinearShape shape{batch, inputs, outputs, bias};
          const std::int64_t used = shape.weights() + (bias ? outputs : 0);
          const bool relu = write == Write::add;
          Trial both(dtype);
          // fp32 has more bits than the TF32 in which a GPU might multiply.
          Twin& x = both(batch * inputs, whole(dtype == Dtype::fp32 ? 4000 : 8));
          Twin &params = both(used + 5, whole(3)), &dy = both(batch * outputs, whole(3));
          Twin &grads = both(used + 5, any), &cut_off = both(batch * outputs, any);
          Twin &y = both(batch * outputs, poison), &dx = both(batch * inputs, poison);
          both.run([&](Side& on) {
            View used_grads = on(grads);
            used_grads.used = used;
            on->linear_forward(shape, on(x), on(params), on(y), relu);
            on->linear_backward_params(shape, relu ? on(cut_off) : View{}, on(dy), on(x),
                                       used_grads, write);
            on->linear_backward_input(shape, on(dy), on(params), on(dx));
          });
        }
      }
    }
  }
}

TEST_CASE("a layer in fp32: its bits do not depend on how many multiprocessors its products get") {
  constexpr LinearShape shape{512, 1000, 520, true};  // sums so long that cuBLAS may split them
  Trial with(Dtype::fp32);  // in fp32 01, which leaves none to NCCL, must have 02's bits
  const std::int64_t used = shape.weights() + shape.outputs;
  Twin &x = with(shape.batch * shape.inputs, any), &params = with(used, any);
  Twin &dy = with(shape.batch * shape.outputs, any), &grads = with(used, poison);
  Twin &y = with(shape.batch * shape.outputs, poison), &dx = with(x.size, poison);
  std::vector<std::array<std::vector<std::uint32_t>, 3>> results;
  for (const bool others : {false, true}) {
    const std::unique_ptr<Device> device = make_gpu(0, others);
    Side on(*device);
    on->reserve_products(product_room_bytes);
    on->linear_forward(shape, on(x), on(params), on(y), true);
    on->linear_backward_params(shape, View{}, on(dy), on(x), on(grads), Write::overwrite);
    on->linear_backward_input(shape, on(dy), on(params), on(dx));
    wait_for(on->record());
    results.push_back({bits(on(y)), bits(on(grads)), bits(on(dx))});
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("a layer: a gradient written has the bits of one added to 0") {
  constexpr std::int64_t inputs = 40, outputs = 72;  // a gradient beyond product_room
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t batch : {300, 4100}) {
      Trial with(dtype);
      Twin &x = with(batch * inputs, any), &dy = with(batch * outputs, any);
      std::vector<std::vector<std::uint32_t>> written;
      for (const Write write : writes) {
        Twin& sum = with(inputs * outputs, [] { return 0.0f; });
        Side on(gpu());
        on->reserve_products(product_room);
        on->linear_backward_params({batch, inputs, outputs, false}, View{}, on(dy), on(x), on(sum),
                                   write);
        wait_for(on->record());
        written.push_back(bits(on(sum)));
      }
      CHECK(written[0] == written[1]);
    }
  }
}

TEST_CASE("cross-entropy") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t count : {1, 2, 5, 256, 1100}) {
      const bool many = count == 5 && dtype == Dtype::fp32;  // more rows than blocks
      for (const std::int64_t rows : {1, 3, many ? 1030 : 9}) {
        Trial both(dtype);
        // Two exps have the same sum in any order, even if one is 0. Of 5 or more each is 1 or 0.
        const auto output = [=] { return count <= 2 ? 55 * any() : any() < 0 ? 0.0f : -200.0f; };
        const auto number = [=] { return std::floor(static_cast<float>(count) * positive()); };
        Twin &outputs = both(rows * count, output), &targets = both.fp32(rows, number);
        Twin& grad_output = both(rows * count, poison);
        both.run([&](Side& on) {
          for (int i = 0; i < 2; ++i) {
            on->cross_entropy(on(outputs), on(targets), rows, 16, on(grad_output), on.sums);
          }
        });
        // The GPU adds rows' losses, twice, in double, in its own order; a row's loss is below 210.
        const double off = both.gpu.sums.totals.loss - both.cpu.sums.totals.loss;
        CHECK(std::abs(off) <= 4 * static_cast<double>(rows + 1) * 0x1p-53 * 210);
      }
    }
  }
}

TEST_CASE("column sums, which a layer's bias has for a gradient") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t columns : {17, 136}) {  // 17 go one by one, 136 in packs
      for (const std::int64_t rows : {1, 5, 300, 8500}) {
        const LinearShape shape{rows, 0, columns, true};  // no inputs, so no product
        Trial with(dtype);
        Twin &grad_output = with(rows * columns, whole(1)), &outputs = with(rows * columns, any);
        Twin &bias = with(columns, poison), &none = with(0, poison);
        std::vector<float> all = values(grad_output.on(gpu())), expected(columns);
        const std::vector<float> y = values(outputs.on(gpu()));
        for (std::size_t i = 0; i < all.size(); ++i) expected[i % columns] += all[i] *= y[i] > 0;
        Side& on = with.gpu;
        on->reserve_products(product_room_bytes);
        on->linear_backward_params(shape, on(outputs), on(grad_output), on(none), on(bias),
                                   Write::overwrite);
        wait_for(on->record());
        CHECK(values(on(bias)) == expected);
        CHECK(values(on(grad_output)) == all);
      }
    }
  }
}

TEST_CASE("no copy of pinned memory is waited for, and copies of ordinary memory arrive, too") {
  constexpr std::int64_t size = 1 << 25, bytes = 1 << 20;
  Buffer pinned(gpu().host(), Kind::communication, bytes, true, Memory::pinned);
  Buffer ordinary(gpu().host(), Kind::communication, bytes, true);
  Tensor values = on_gpu(size), back = on_gpu(size);
  const auto on = make_kernels(gpu());
  on->copy_bytes(pinned.data(), back.view().data, bytes);  // a GPU's first copy takes longer
  on->initialise(values.view(), Generator(fresh_seed(), RandomStream::inputs), 0, 1, 0);
  for (int i = 0; i < 20; ++i) on->divide(values.view(), 3);
  const DeviceEventPtr divided = on->record();
  on->copy_bytes(pinned.data(), values.view().data, bytes);
  on->copy_bytes(back.view().data, pinned.data(), bytes);
  CHECK(!divided->passed());
  const View elsewhere = back.view().part(size / 2, bytes / 4);
  on->copy_bytes(ordinary.data(), values.view().data, bytes);
  on->copy_bytes(elsewhere.data, ordinary.data(), bytes);
  wait_for(on->record());
  const auto expected = bits(values.view().part(0, bytes / 4));
  CHECK(bits(back.view().part(0, bytes / 4)) == expected);
  CHECK(bits(elsewhere) == expected);
}

TEST_CASE("slices that a GPU has not passed are taken later, with its times, and none is lost") {
  constexpr int tasks = 10;
  Recorder recorder(gpu(), true, false, false);
  Stream stream("test", gpu());
  Tensor values = on_gpu(1 << 25);
  for (int i = 0; i < tasks; ++i) {
    stream.run({.what = "a long division", .layer = i},
               [&, &on = stream.kernels()] { on.divide(values.view(), 3); });
  }
  const auto told = Clock::now();
  std::vector<Slice> slices = recorder.take();
  CHECK(slices.size() < tasks);
  stream.synchronise();
  std::ranges::copy_if(recorder.take(), std::back_inserter(slices), &Slice::track);  // 0: the host
  REQUIRE(slices.size() == tasks);
  CHECK(recorder.take().empty());
  auto before = slices[0].begin.time();
  for (int i = 0; i < tasks; ++i) {
    CHECK(slices[i].work.layer == i);
    CHECK(before <= slices[i].begin.time());
    before = slices[i].end.time();
    CHECK(slices[i].begin.time() < before);
  }
  CHECK(before > told);
}

TEST_CASE("an event's time is the host's, to half a millisecond") {
  for (int reading = 0; reading < 8; ++reading) {
    const std::unique_ptr<Device> device = make_gpu();  // a new one reads both clocks anew
    const auto on = make_kernels(*device);
    const auto begin = Clock::now();
    const DeviceEventPtr event = on->record_time();
    wait_for(event);
    const auto end = Clock::now();
    constexpr auto tolerance = std::chrono::microseconds(500);
    CHECK(event->time() > begin - tolerance);
    CHECK(event->time() < end + tolerance);
  }
}

TEST_CASE("a product finds room for cuBLAS where a run takes all that it may") {
  constexpr LinearShape shape{5, 7, 9, true};
  Trial with(Dtype::fp32);
  const auto one = [] { return 1.0f; };
  Twin &x = with(35, one), &params = with(72, one), &y = with(45, poison);
  const Side& on = with.gpu;
  on->reserve_products(product_room);
  const Buffer rest(gpu(), Kind::data, gpu().available() - bytes_for_libraries(0), true);
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
  const auto check = [&](const char* number, int sharing, int sharing_host, int ranks = 1,
                         Comm comm = Comm::mpi) {
    const Choice choice{.comm = comm, .sharing = sharing, .sharing_host = sharing_host};
    return check_memory(card(number), options, choice, gpu(), layout_of(options, 0, ranks));
  };
  // on_machine: twice the ranks that fit in host memory. fit: the ranks, with libraries, on a GPU.
  const auto on_machine = static_cast<int>(2 * host().available() / on_host);
  const auto fit = static_cast<int>(gpu().available() / (needed + bytes_for_libraries(0)));
  const int on_gpu = fit + 1;
  CHECK(check("07", 1, 1) == needed);
  CHECK(check("07", fit, 1) == needed);
  check("06", 1, on_machine);  // 06 on 1 rank takes no host memory
  check_refused(ExitCode::resources,
                {grouped(on_host) + " bytes of the host's memory, ",
                 fmt::format("{} on this machine", on_machine)},
                [&] { check("07", 1, on_machine); });
  check_refused(ExitCode::resources,
                {grouped(needed + bytes_for_libraries(0)) + " bytes, 536 870 912 of them for ",
                 fmt::format("{} on this GPU", on_gpu)},
                [&] { check("07", on_gpu, 1); });
  // Beside 512 MiB for libraries, NCCL takes 192 MiB for each peer.
  check_refused(ExitCode::resources, {grouped(std::int64_t{512 + 192} << 20) + " of them for "},
                [&] { check("07", on_gpu, 2, 2, Comm::nccl); });
  // On 2 ranks MPI's messages pass through the host: half of the largest layer, out and in, bf16.
  const std::int64_t staged = 2 * layout.largest_layer();
  check("06", 1, static_cast<int>(host().available() / staged / 2), 2);
  check_refused(ExitCode::resources, {grouped(staged) + " bytes of the host's memory, "},
                [&] { check("06", 1, static_cast<int>(2 * host().available() / staged), 2); });
}
}  // namespace zero::test
