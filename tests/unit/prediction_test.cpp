// SPDX-License-Identifier: MIT
// Predictions at their limits, and what is said of memory that is too small. The formulas are for
// the tests on ranks, and for tests/programs/memory_test.py, which writes them once more.
#include "report/prediction.hpp"

#include "config.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
Layout layout_of(const Options& options, int ranks) {
  return Layout(architecture(options).sizes(), 0, ranks);
}

Prediction on_cpu(const Chapter& chapter, const Options& options, int ranks) {
  return predict(chapter, options, cpu(), layout_of(options, ranks));
}

const Prediction::Bytes& of(const Prediction& plan, Kind kind) {
  return plan.bytes[Place::device][kind];
}
}  // namespace

TEST_CASE("the largest sizes that can be asked for do not overflow") {
  constexpr int most = 1 << 16;
  const Options options{.task = Task::mlp,
                        .batch = most,
                        .accumulate = most,
                        .width = most,
                        .layers = 1 << 12,
                        .dtype = Dtype::bf16};
  const Prediction plan = on_cpu(card("06"), options, 1 << 12);
  const auto exact = static_cast<long double>(plan.padded);
  CHECK(of(plan, Kind::optimizer).resident == 12 * (plan.padded >> 12));
  CHECK(of(plan, Kind::activations).peak > 0);
  CHECK(plan.passed({}).sent[Phase::backward] ==
        static_cast<std::int64_t>(exact * 131072 * 4095 / 4096));
  CHECK(plan.passed({}).padding >= 0);
}

/// --device-memory of one byte less than the chapter needs is refused with these words.
static void check_suggested(const std::string& number, Options options, int ranks,
                            const std::string& suggested) {
  const Layout layout = layout_of(options, ranks);
  const auto check = [&] { return check_memory(card(number), options, {}, layout); };
  const std::int64_t needed = on_cpu(card(number), options, ranks).sum(&Prediction::Bytes::peak);
  options.device_memory = needed;
  CHECK(check() == needed);
  options.device_memory = needed - 1;
  check_refused(ExitCode::resources,
                {fmt::format("each rank needs {} bytes of device memory, --device-memory allows {}"
                             ": {}",
                             grouped(needed), grouped(needed - 1), suggested)},
                check);
}

TEST_CASE("what --device-memory does not allow is refused with the first chapter that would fit") {
  const auto would = [](const std::string& number, const Options& options, int ranks) {
    const std::int64_t bytes = on_cpu(card(number), options, ranks).sum(&Prediction::Bytes::peak);
    return fmt::format("{} would need {}", card(number).name, grouped(bytes));
  };
  const Options fp32{.task = Task::mlp, .width = 64, .layers = 8};
  Options bf16 = fp32;
  bf16.dtype = Dtype::bf16;
  check_suggested("06", bf16, 4, would("07", bf16, 4));
  check_suggested("03", bf16, 4, would("04", bf16, 4));
  check_suggested("02", fp32, 4, would("04", fp32, 4));
  // 06 borrows more than there is beside one layer; 02 can do no bf16.
  Options thick = bf16;
  thick.layers = 1;
  check_suggested("06", thick, 1, would("03", thick, 1));
  thick.dtype = Dtype::fp32;
  check_suggested("06", thick, 1, would("02", thick, 1));
  check_suggested("07", bf16, 4,
                  "no chapter fits, use fewer or smaller layers or batches, or more ranks");
  const Options data{
      .data = DEFAULT_CORPUS, .batch = 1, .width = 8, .layers = 1, .dtype = Dtype::bf16};
  check_suggested("06", data, 1, "use a smaller --data or --batch");
}

TEST_CASE("on the CPU the machine's memory is the device's and its host's") {
  const Options options{.task = Task::mlp, .width = 256, .layers = 8, .dtype = Dtype::bf16};
  const Prediction plan = on_cpu(card("07"), options, 1);
  const std::int64_t device = plan.sum(&Prediction::Bytes::peak);
  const std::int64_t host = plan.sum(&Prediction::Bytes::peak, Place::host);
  const auto check = [&](const char* number, std::int64_t share) {
    const auto sharing = static_cast<int>(memory_of(cpu()).available() / share);
    return check_memory(card(number), options, {.sharing = sharing}, layout_of(options, 1));
  };
  CHECK(check("07", 2 * (device + host)) == device);
  check_refused(
      ExitCode::resources,
      {fmt::format("each rank needs {} bytes, ", grouped(device + host)),
       "available: no chapter fits, use fewer or smaller layers or batches, or more machines"},
      [&] { check("07", device + host / 2); });
}
}  // namespace zero::test
