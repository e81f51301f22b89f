// SPDX-License-Identifier: MIT
// The samples: the same whoever asks for them, and those that the note describes. And a step's
// step result: loss, norm, factor, skip, and the life of the loss scale.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/unit/checks.hpp"
#include "train/step.hpp"

namespace zero::test {
namespace {
/// The scale after so many further steps.
float after(LossScale& scale, bool skipped, int steps = 1) {
  for (int i = 0; i < steps; ++i) scale.update(skipped);
  return scale.value();
}

constexpr bool good = false, bad = true;
}  // namespace

TEST_CASE("micro-batch m = (step A + a) N + rank begins at sample m batch") {
  Options options{.task = Task::toy, .batch = 5, .accumulate = 2};
  const auto data = make_data(options, cpu(), 2, 3);
  CHECK((*data)(0, 0).first == 2 * 5);
  CHECK((*data)(0, 1).first == (1 * 3 + 2) * 5);
  CHECK((*data)(4, 1).first == ((4 * 2 + 1) * 3 + 2) * 5);
  CHECK((*data)(4, 1).data == data.get());
  // Beyond 32 bits: the last step there can be.
  options.batch = 1 << 16, options.accumulate = 4;
  CHECK((*make_data(options, cpu(), 2, 3))((1 << 30) - 1, 3).first ==
        (((std::int64_t{1} << 32) - 1) * 3 + 2) << 16);
}

TEST_CASE("text: the codes of 8 bytes in a row, and the byte after them; nine are enough") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("zero-data-{}", getpid());
  const Options options{.data = file, .width = 32, .seed = 4};
  const Generator positions(4, RandomStream{2}), codes(4, RandomStream{3});  // the note's numbers
  const Tensor input(cpu(), Kind::data, Dtype::fp32, 32), target(cpu(), Kind::data, Dtype::fp32, 1);
  const auto kernels = make_kernels(cpu());
  for (const std::int64_t size : {9, 5 << 19}) {  // the second is read in three pieces
    std::string text;
    for (std::int64_t i = 0; i < size; ++i) text += static_cast<char>(mix(i));
    std::ofstream(file, std::ios::binary) << text;
    CHECK(source_bytes(options).bytes == size + 4 * 256 * 4);
    const auto data = make_data(options, cpu());
    std::filesystem::remove(file);
    for (std::uint64_t s = 0; s < 3000; ++s) {
      const std::uint64_t position = positions.bits(s) % (size - 8);
      const auto byte = [&](std::uint64_t i) {
        return static_cast<unsigned char>(text[position + i]);
      };
      data->load(*kernels, s, input.view(), target.view());
      REQUIRE(element(target.view(), 0) == byte(8));
      for (int i = 0; i < 32; ++i)
        REQUIRE(element(input.view(), i) == codes.uniform(byte(i / 4) * 4 + i % 4));
    }
  }
}

TEST_CASE("tokens: those of a sequence, and of each the one behind it") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("zero-tokens-{}", getpid());
  Options options{.task = Task::llama, .batch = 2, .sequence = 5, .tokens = file, .vocab = 3000};
  const auto write = [&](const std::vector<std::int32_t>& header, const auto& tokens) {
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(header.data()), std::ssize(header) * 4);
    out.write(reinterpret_cast<const char*>(tokens.data()),
              std::ssize(tokens) * std::int64_t{sizeof tokens[0]});
  };
  const std::vector<std::int32_t> none, llm_c = [] {
    std::vector<std::int32_t> header(256);
    header[0] = 20240520, header[2] = 3000;
    return header;
  }();
  std::vector<std::uint16_t> tokens;
  for (int i = 0; i < 3000; ++i) tokens.push_back((i * 7) % 3000);
  const Tensor input(cpu(), Kind::data, Dtype::fp32, 10),
      target(cpu(), Kind::data, Dtype::fp32, 10);
  for (const auto& header : {none, llm_c}) {
    write(header, tokens);
    CHECK(source_bytes(options).bytes == 6000);
    make_data(options, cpu())->load(*make_kernels(cpu()), 40, input.view(), target.view());
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t at = Generator(1, RandomStream{2}).bits(40 + i / 5) % 2995 + i % 5;
      CHECK(element(input.view(), i) == tokens[at]);
      CHECK(element(target.view(), i) == tokens[at + 1]);
    }
  }
  const auto refused = [&](const std::vector<std::string>& words) {
    check_refused(ExitCode::data, words, [&] { make_data(options, cpu()); });
  };
  options.vocab = 2999;
  refused({"token 857 of ", " is 2999: --vocab 2999 has those from 0 to 2998"});
  options.sequence = 3000;
  refused({"has 3000 tokens; task llama needs at least 3001: 3000 of --sequence"});
  write(llm_c, std::string("abcd"));
  refused({"has 1028 bytes; by its header they are 3000 tokens of 2 behind 1024"});
  write(none, std::string("abc"));
  refused({"has 3 bytes of tokens: of 16 bits each they are an even number"});
  write({20240801}, tokens);
  refused({"has tokens of 32 bits"});
  std::filesystem::remove(file);
  refused({"cannot read " + file.string()});
}

TEST_CASE("a step result: the mean loss, the norm, and one factor for clip and loss scale") {
  struct Case {
    StepSums step;
    float loss, norm, factor;
  };
  const double third = std::sqrt(3.0) / 3;  // in fp32 the factor of a clip to 0.3 is another one
  CHECK(0.3f / (std::sqrt(3.0f) / 3) / 3 != static_cast<float>(0.3 / third / 3));
  const Case cases[] = {
      {{{0, 3}, 1, 1, 3, 0.3}, 0, static_cast<float>(third), static_cast<float>(0.3 / third / 3)},
      {{{6, 1}, 2, 2}, 1.5f, 1, 1},
      {{{1, 1}, 1, 3}, 1.0 / 3, 1, 1},  // divided in double and rounded to fp32 once
      {{{0, 1e12}}, 0, 1e6f, 1},  // not clipped
      {{{0, 1e12}, 1, 1, 1024}, 0, 1e6f / 1024, 1.0f / 1024},
      {{{0, 1e12}, 1, 1, 3}, 0, 1e6 / 3, 1.0 / 3},
      {{.totals = {0, 25}, .clip = 5}, 0, 5, 1},  // at the clip: nothing to do
      {{.totals = {0, 25}, .clip = 6}, 0, 5, 1},
      {{.totals = {0, 25}, .clip = 1}, 0, 5, 1.0 / 5},
      {{{0, 25.0 * 64 * 64}, 1, 1, 64, 2.5}, 0, 5, 0.5f / 64},  // the norm that counts is unscaled
      {{.totals = {0, 0}, .clip = 1}, 0, 0, 1}};
  for (const Case& of : cases) {
    const StepResult result = step_result(of.step);
    CHECK(result.loss == of.loss);
    CHECK(result.grad_norm == of.norm);  // logged before clipping
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
  // An infinite loss with finite gradients is the loss's own affair.
  CHECK(!step_result({.totals = {INFINITY, 1}}).skipped);
}

TEST_CASE("the dynamic loss scale: 2^16, halved when skipped, doubled after 2000 good in a row") {
  LossScale small({.dtype = Dtype::fp16}), scale = small;
  CHECK(after(small, bad) == 32768);
  CHECK(after(small, bad, 14) == 2);
  for (int times = 0; times < 2; ++times) CHECK(after(small, bad) == 1);
  CHECK(after(scale, good, 1999) == 65536);
  CHECK(after(scale, good) == 131072);
  // Counted anew after a doubling, and after a skipped step.
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
