// SPDX-License-Identifier: MIT
// Predictions. The formulas here are the ZeRO paper's, written by hand; that each chapter states
// the right ones is for the tests that are compiled against it.
#include "report/prediction.hpp"

#include <cmath>
#include <filesystem>

#include "config.hpp"
#include "run/command_line.hpp"
#include "tests/unit/checks.hpp"
#include "tests/unit/questions.hpp"

namespace zero::test {
namespace {
/// ZeRO's stages, from 0: replicated; optimizer sharded, gradients too, parameters too.
constexpr Chapter stages[] = {
    {.name = "replicated",
     .state_bytes = [](double p, double g, double k, double) { return p + g + k; },
     .elements_sent = [](double) { return Traffic(0, 2, 0); }},
    {.name = "sharded optimizer",
     .state_bytes = [](double p, double g, double k, double n) { return p + g + k / n; },
     .elements_sent = [](double) { return Traffic(0, 1, 1); }},
    {.name = "sharded gradients",
     .state_bytes = [](double p, double g, double k, double n) { return p + (g + k) / n; },
     .elements_sent = [](double a) { return Traffic(0, a, 1); },
     .whole_layers = [](int) { return WholeLayers(0, 1); }},
    {.name = "sharded all",
     .state_bytes = [](double p, double g, double k, double n) { return (p + g + k) / n; },
     .elements_sent = [](double a) { return Traffic(a, 2 * a, 0); },
     .whole_layers = [](int prefetch) { return WholeLayers(prefetch + 1, 2); }}};
constexpr const Chapter& replicated = stages[0];
constexpr const Chapter& sharded_all = stages[3];

/// A stack of layers on text, the shipped one.
Options text_options(Dtype dtype, int layers) {
  return {.data = DEFAULT_CORPUS, .width = 16, .layers = layers, .dtype = dtype};
}

Layout layout_of(const Options& options, int ranks) {
  return Layout(architecture(options).sizes(), 0, ranks);
}

Prediction on_cpu(const Chapter& chapter, const Options& options, int ranks) {
  return predict(chapter, options, Device::cpu, layout_of(options, ranks));
}

const Prediction::Bytes& of(const Prediction& plan, Kind kind) {
  return plan.bytes[static_cast<int>(kind)];
}

std::int64_t resident_state(const Prediction& plan) {
  return of(plan, Kind::parameters).resident + of(plan, Kind::gradients).resident +
         of(plan, Kind::optimizer).resident;
}
}  // namespace

TEST_CASE("three layers of 2048 with bias in fp32 on 4 ranks: 201, 126, 88 and 50 MB") {
  const Options options{.task = Task::mlp, .width = 2048, .layers = 3};
  constexpr double expected[] = {201.4, 125.9, 88.1, 50.4};
  for (int stage = 0; stage <= 3; ++stage) {
    const Prediction plan = on_cpu(stages[stage], options, 4);
    CHECK(plan.parameters == 12589056);
    CHECK(plan.padded == plan.parameters);
    const double mb = static_cast<double>(resident_state(plan)) / 1e6;
    CHECK(std::abs(mb - expected[stage]) <= 0.05);  // as far as the figures are printed
    // A GPU receives whole parts of a layer, a CPU of each other rank two pieces of 256 KiB.
    const Prediction on_gpu = predict(stages[stage], options, Device::cuda, layout_of(options, 4));
    CHECK(of(plan, Kind::communication).peak == 3 * 512 << 10);
    CHECK(of(on_gpu, Kind::communication).peak == 2048 * 2049 * 4 / 4 * 3);
  }
}

TEST_CASE("a window borrows prefetch + 1 layers and two gradients, or what a run has uses for") {
  using Five = std::array<int, 5>;
  // One layer is used twice in a step and micro-batch (forward, backward), its gradient once.
  for (const auto& [layers, prefetch, accumulate, params, grads] :
       {Five{2, 0, 1, 1, 2}, {2, 1, 1, 2, 2}, {2, 2, 1, 3, 2}, {1, 2, 1, 2, 1}, {1, 2, 2, 3, 2}}) {
    Options options = text_options(Dtype::fp32, layers);
    options.prefetch = prefetch;
    options.accumulate = accumulate;
    const Layout layout = layout_of(options, 2);
    const Prediction plan = on_cpu(sharded_all, options, 2);
    const auto borrowed = [&](Kind kind) {
      return (of(plan, kind).peak - of(plan, kind).resident) / (4 * layout.largest_layer());
    };
    CHECK(of(plan, Kind::parameters).resident == 4 * layout.full_size() / 2);
    CHECK(of(plan, Kind::optimizer).resident == 8 * layout.full_size() / 2);
    CHECK(borrowed(Kind::parameters) == params);
    CHECK(borrowed(Kind::gradients) == grads);
  }
}

TEST_CASE("the largest sizes that can be asked for do not overflow") {
  Options options = text_options(Dtype::bf16, 1 << 12);
  options.task = Task::mlp;
  options.width = options.batch = options.accumulate = 1 << 16;
  const Prediction plan = on_cpu(sharded_all, options, 1 << 12);
  const auto exact = static_cast<long double>(plan.padded);
  CHECK(of(plan, Kind::optimizer).resident == 12 * (plan.padded >> 12));
  CHECK(of(plan, Kind::activations).peak > 0);
  CHECK(plan.sent(Phase::backward, {1, 0}) ==
        static_cast<std::int64_t>(exact * 131072 * 4095 / 4096));
  CHECK(plan.padding_sent({1, 0}) >= 0);
}

TEST_CASE("what does not fit beside those who share the memory is refused, with the numbers") {
  const Options small = text_options(Dtype::fp32, 1);
  const Prediction plan = on_cpu(replicated, small, 2);
  std::int64_t bytes = 0;
  for (const Prediction::Bytes& kind : plan.bytes) bytes += kind.peak;
  const auto check = [](const Options& options, int sharing) {
    return check_memory(replicated, options, {.sharing = sharing}, layout_of(options, 2));
  };
  CHECK(check(small, 2) == bytes);
  // As many as would take twice what there is; and one rank that no machine has room for.
  const auto many = static_cast<int>(2 * memory_of(Device::cpu).available() / bytes);
  const Options large{.task = Task::mlp, .width = 1 << 16, .layers = 1 << 12};
  for (const auto& [options, sharing] : {std::pair{small, many}, {large, 1}}) {
    const std::string share = fmt::format(" bytes, {} on this machine share ", sharing);
    check_refused(ExitCode::resources, {"each rank needs ", share},
                  [&] { check(options, sharing); });
  }
}

/// --device-memory of one byte less than the chapter needs is refused with these words.
static void check_suggested(const std::string& number, Options options, int ranks,
                            const std::string& suggested) {
  const Layout layout = layout_of(options, ranks);
  const auto check = [&] { return check_memory(chapter(number), options, {}, layout); };
  const std::int64_t needed = on_cpu(chapter(number), options, ranks).sum(&Prediction::Bytes::peak);
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
    const std::int64_t bytes =
        on_cpu(chapter(number), options, ranks).sum(&Prediction::Bytes::peak);
    return fmt::format("{} would need {}", chapter(number).name, grouped(bytes));
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
  Options data = text_options(Dtype::bf16, 1);
  data.width = 8;
  data.batch = 1;
  check_suggested("06", data, 1, "use a smaller --data or --batch");
}

TEST_CASE("on the CPU the machine's memory is the device's and its host's") {
  const Options options{.task = Task::mlp, .width = 256, .layers = 8, .dtype = Dtype::bf16};
  const Prediction plan = on_cpu(chapter("07"), options, 1);
  const std::int64_t device = plan.sum(&Prediction::Bytes::peak);
  const std::int64_t host = plan.sum(&Prediction::Bytes::peak, Place::host);
  const auto check = [&](const char* number, std::int64_t share) {
    const auto sharing = static_cast<int>(memory_of(Device::cpu).available() / share);
    return check_memory(chapter(number), options, {.sharing = sharing}, layout_of(options, 1));
  };
  CHECK(check("07", 2 * (device + host)) == device);
  check_refused(
      ExitCode::resources,
      {fmt::format("each rank needs {} bytes, ", grouped(device + host)),
       "available: no chapter fits, use fewer or smaller layers or batches, or more machines"},
      [&] { check("07", device + host / 2); });
}

TEST_CASE("what can be answered alone is, with its exit code; the rest goes on") {
  Command command;
  command.run = true;
  CHECK(!answer_alone(command, sharded_all));
  command.options.plan = true;
  command.options.data = "no such file";
  CHECK(answer_alone(command, sharded_all) == 3);
}
}  // namespace zero::test
