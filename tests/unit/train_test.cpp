// SPDX-License-Identifier: MIT
// Files of samples, the result of a step (loss, norm, factor, skip), and the loss scale. Which
// samples make a batch is tested in tests/programs/digests_test.py.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/unit/checks.hpp"
#include "train/step.hpp"

namespace zero::test {
namespace {
/// A temporary file, which is removed at the end of the scope.
struct File {
  explicit File(const char* name)
      : path(std::filesystem::temp_directory_path() / fmt::format("zero-{}-{}", name, getpid())) {}
  ~File() { std::filesystem::remove(path); }
  void write(const std::string& content) const { std::ofstream(path, std::ios::binary) << content; }
  const std::string path;
};

/// The bytes that hold a number in memory, first byte first.
std::string number(auto value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

/// The loss scale after `steps` more steps, all of them skipped or none.
float after(LossScale& scale, bool skipped, int steps = 1) {
  for (int i = 0; i < steps; ++i) scale.update(skipped);
  return scale.value();
}

constexpr bool good = false, bad = true;  // whether the step is skipped
}  // namespace

TEST_CASE("a text is read whole, in three pieces; nine bytes are enough") {
  const File file("text");
  const Generator positions(4, RandomStream::positions);
  Tensor input(cpu(), Kind::data, Dtype::fp32, 32), target(cpu(), Kind::data, Dtype::fp32, 1);
  for (const std::int64_t size : {9, 5 << 19}) {
    std::string text;
    for (std::int64_t i = 0; i < size; ++i) text += static_cast<char>(mix(i));
    file.write(text);
    const auto data = make_data({.data = file.path, .width = 32, .seed = 4}, cpu());
    for (std::uint64_t s = 0; s < 3000; ++s) {
      data->load(*make_kernels(cpu()), s, input.view(), target.view());
      const char next = text[positions.bits(s) % (size - 8) + 8];
      REQUIRE(element(target.view(), 0) == static_cast<unsigned char>(next));
    }
  }
}

TEST_CASE("a file of tokens, with llm.c's header or without, and files that are none") {
  const File file("tokens");
  Options options{
      .task = Task::llama, .batch = 2, .sequence = 5, .tokens = file.path, .vocab = 3000};
  std::string tokens;
  for (int i = 0; i < 3000; ++i) tokens += number(std::uint16_t(i * 7 % 3000));
  const std::string header = number(20240520) + number(1) + number(3000) + std::string(1012, 0);
  Tensor inputs(cpu(), Kind::data, Dtype::fp32, 10);
  Tensor targets(cpu(), Kind::data, Dtype::fp32, 10);
  for (const std::string& before : {std::string(), header}) {
    file.write(before + tokens);
    CHECK(source_bytes(options).bytes == 6000);
    make_data(options, cpu())->load(*make_kernels(cpu()), 40, inputs.view(), targets.view());
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t at =
          Generator(1, RandomStream::positions).bits(40 + i / 5) % 2995 + i % 5;
      CHECK(element(inputs.view(), i) == at * 7 % 3000);
      CHECK(element(targets.view(), i) == (at + 1) * 7 % 3000);
    }
  }
  const auto refused = [&](const std::string& content, const std::string& words) {
    file.write(content);
    check_refused(ExitCode::data, {words}, [&] { make_data(options, cpu()); });
  };
  refused(header + "abcd", "has 1028 bytes; by its header they are 3000 tokens of 2 behind 1024");
  refused("abc", "has 3 bytes of tokens: of 16 bits each they are an even number");
  refused(number(20240801) + tokens, "of numbers of 32 bits (<i4)");
  options.vocab = 2999;
  refused(tokens, " is 2999: --vocab 2999 has those from 0 to 2998");
  options.sequence = 3000;
  refused(tokens, "has 3000 tokens; task llama needs at least 3001: 3000 of --sequence");
}

TEST_CASE("samples are numbered in 64 bits, up to the last one that there can be") {
  const Options options{.task = Task::toy, .batch = 1 << 16, .accumulate = 4};
  CHECK((*make_data(options, cpu(), 2, 3))((1 << 30) - 1, 3).first ==
        (((std::int64_t{1} << 32) - 1) * 3 + 2) << 16);
}

TEST_CASE("a step result: the mean loss, the norm, and one factor for clip and loss scale") {
  struct Case {
    StepInputs step;
    float loss, norm, factor;
  };
  const double third = std::sqrt(3.0) / 3;  // in fp32 the factor would differ:
  CHECK(0.3f / (std::sqrt(3.0f) / 3) / 3 != static_cast<float>(0.3 / third / 3));
  const Case cases[] = {
      {{{0, 3}, 1, 1, 3, 0.3}, 0, static_cast<float>(third), static_cast<float>(0.3 / third / 3)},
      {{{6, 1}, 2, 2}, 1.5f, 1, 1},
      {{{1, 1}, 1, 3}, 1.0 / 3, 1, 1},  // divided in double and rounded to fp32 once
      {{{0, 1e12}}, 0, 1e6f, 1},  // not clipped
      {{{0, 1e12}, 1, 1, 1024}, 0, 1e6f / 1024, 1.0f / 1024},
      {{{0, 1e12}, 1, 1, 3}, 0, 1e6 / 3, 1.0 / 3},
      {{.totals = {0, 25}, .clip = 5}, 0, 5, 1},  // a norm equal to the clip is not clipped
      {{.totals = {0, 25}, .clip = 6}, 0, 5, 1},
      {{.totals = {0, 25}, .clip = 1}, 0, 5, 1.0 / 5},
      {{{0, 25.0 * 64 * 64}, 1, 1, 64, 2.5}, 0, 5, 0.5f / 64},  // clips the unscaled norm
      {{.totals = {0, 0}, .clip = 1}, 0, 0, 1}};
  for (const Case& of : cases) {
    const StepResult result = step_result(of.step);
    CHECK(result.loss == of.loss);
    CHECK(result.grad_norm == of.norm);  // the norm before clipping
    CHECK(result.grad_factor == of.factor);
    CHECK(result.loss_scale == of.step.loss_scale);
  }
}

TEST_CASE("a step is skipped when its sum of squares is not finite") {
  for (const double squares : {1.0, 1e300}) CHECK(!step_result({.totals = {1, squares}}).skipped);
  for (const double squares : {double{INFINITY}, double{NAN}}) {
    CHECK(step_result({.totals = {1, squares}}).skipped);
    CHECK(step_result({.totals = {1, squares}, .loss_scale = 1024, .clip = 1}).skipped);
  }
  // An infinite loss with finite gradients skips no step.
  CHECK(!step_result({.totals = {INFINITY, 1}}).skipped);
}

TEST_CASE("the dynamic loss scale: 2^16, halved when skipped, doubled after 2000 good in a row") {
  LossScale small({.dtype = Dtype::fp16}), scale = small;
  CHECK(after(small, bad) == 32768);
  CHECK(after(small, bad, 14) == 2);
  for (int times = 0; times < 2; ++times) CHECK(after(small, bad) == 1);
  CHECK(after(scale, good, 1999) == 65536);
  CHECK(after(scale, good) == 131072);
  // A doubling and a skipped step both begin a new count of 2000.
  CHECK(after(scale, good, 1999) == 131072);
  CHECK(after(scale, bad) == 65536);
  CHECK(after(scale, good, 1999) == 65536);
  CHECK(after(scale, good) == 131072);
  for (const int times : {7, 2}) CHECK(after(scale, good, times * 2000) == 0x1p24f);
}

TEST_CASE("a fixed loss scale stays, and fp32 and bf16 have none") {
  using enum Dtype;
  for (const auto& [dtype, asked, value] :
       {std::tuple{fp16, 1000, 1000}, {fp32, 0, 1}, {bf16, 0, 1}, {bf16, 1000, 1}}) {
    LossScale scale({.dtype = dtype, .loss_scale = 1.0 * asked});
    CHECK(scale.value() == value);
    CHECK(after(scale, good, 2000) == value);
    CHECK(after(scale, bad) == value);
  }
}
}  // namespace zero::test
