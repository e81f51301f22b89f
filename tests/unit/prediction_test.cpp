// SPDX-License-Identifier: MIT
// Predictions. The formulas here are the ZeRO paper's, written by hand; that each chapter states
// the right ones is for the tests that are compiled against it.
#include "report/prediction.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "config.hpp"
#include "train/mlp.hpp"

namespace zero {

namespace {

constexpr Formulas replicated{[](double p, double g, double k, double) { return p + g + k; },
                              [](double) {
                                return Traffic{0, 2, 0};
                              },
                              [](int) {
                                return WholeLayers{0, 0};
                              }};
constexpr Formulas sharded_optimizer{
    [](double p, double g, double k, double n) { return p + g + k / n; },
    [](double) {
      return Traffic{0, 1, 1};
    },
    [](int) {
      return WholeLayers{0, 0};
    }};
constexpr Formulas sharded_gradients{
    [](double p, double g, double k, double n) { return p + (g + k) / n; },
    [](double a) {
      return Traffic{0, a, 1};
    },
    [](int) {
      return WholeLayers{0, 1};
    }};
constexpr Formulas sharded_all{
    [](double p, double g, double k, double n) { return (p + g + k) / n; },
    [](double a) {
      return Traffic{a, 2 * a, 0};
    },
    [](int prefetch) {
      return WholeLayers{prefetch + 1, 2};
    }};
constexpr const Formulas* stages[] = {
    &replicated, &sharded_optimizer, &sharded_gradients, &sharded_all};

constexpr Kind state_kinds[] = {Kind::parameters, Kind::gradients, Kind::optimizer};

Options text_options(Dtype dtype, int width, int layers) {
  Options options;
  options.dtype = dtype;
  options.width = width;
  options.layers = layers;
  return options;
}

std::int64_t resident_state(const Prediction& plan) {
  std::int64_t sum = 0;
  for (const Kind kind : state_kinds) sum += plan.bytes[static_cast<int>(kind)].resident;
  return sum;
}

const Prediction::Bytes& of(const Prediction& plan, Kind kind) {
  return plan.bytes[static_cast<int>(kind)];
}

/// Bytes of parameters, gradients and optimizer state on one of `ranks`.
double state_of(const Formulas& formulas, Dtype dtype, double parameters, int ranks) {
  const Layout layout({static_cast<std::int64_t>(parameters)}, 0, ranks);
  return static_cast<double>(
      resident_state(predict(formulas, text_options(dtype, 8, 1), layout, 9)));
}

/// A cell of the paper's table: the figure as it is printed, in GB.
void check_cell(const Formulas& formulas,
                double parameters,
                int ranks,
                const std::string& printed,
                bool truncated) {
  INFO(parameters, " parameters on ", ranks, " ranks");
  const double gb = state_of(formulas, Dtype::bf16, parameters, ranks) / 1e9;
  const std::size_t point = printed.find('.');
  const auto decimals =
      point == printed.npos ? 0.0 : static_cast<double>(printed.size() - point - 1);
  const double unit = std::pow(10, -decimals);
  // Padding adds less than a MB. What lies just on a border of the printed unit may go either way.
  const double padding = 1e-3;
  const double above = gb - std::atof(printed.c_str());
  CHECK(above >= (truncated ? 0 : -unit / 2) - padding);
  CHECK(above <= (truncated ? unit : unit / 2) + padding);
}

}  // namespace

TEST_CASE("the 54 cells of the ZeRO paper's table of model states, in GB") {
  // Table 1 of arXiv 1910.02054v3: K = 12 bytes of optimizer state beside 2 + 2 in 16 bit.
  struct Row {
    int ranks;
    const char* cells[9];  // three models, and of each: optimizer, gradients, parameters sharded
  };
  constexpr Row rows[] = {
      {1, {"120", "120", "120", "2048", "2048", "2048", "16000", "16000", "16000"}},
      {4, {"52.5", "41.3", "30", "896", "704", "512", "7000", "5500", "4000"}},
      {16, {"35.6", "21.6", "7.5", "608", "368", "128", "4750", "2875", "1000"}},
      {64, {"31.4", "16.6", "1.88", "536", "284", "32", "4187", "2218", "250"}},
      {256, {"30.4", "15.4", "0.47", "518", "263", "8", "4046", "2054", "62.5"}},
      {1024, {"30.1", "15.1", "0.12", "513", "257", "2", "4011", "2013", "15.6"}}};
  constexpr double models[] = {7.5e9, 128e9, 1e12};
  for (const Row& row : rows) {
    for (int model = 0; model < 3; ++model) {
      for (int stage = 1; stage <= 3; ++stage) {
        // The first model's cells are rounded in the paper, the others' are cut off.
        const bool truncated = model > 0;
        const char* cell = row.cells[model * 3 + stage - 1];
        check_cell(*stages[stage], models[model], row.ranks, cell, truncated);
      }
    }
  }
  check_cell(replicated, 7.5e9, 64, "120", false);
}

TEST_CASE("shares of memory saved, in 16 bit and in fp32") {
  struct Row {
    int ranks;
    double mixed[3], fp32[3];  // percent, by stage
  };
  constexpr Row rows[] = {{2, {37.5, 43.75, 50}, {25, 37.5, 50}},
                          {4, {56.25, 65.625, 75}, {37.5, 56.25, 75}},
                          {8, {65.625, 76.5625, 87.5}, {43.75, 65.625, 87.5}}};
  constexpr double parameters = 64e6;  // no padding at 2, 4 and 8 ranks
  for (const Row& row : rows) {
    for (int stage = 1; stage <= 3; ++stage) {
      const auto saved = [&](Dtype dtype) {
        return 100 * (1 - state_of(*stages[stage], dtype, parameters, row.ranks) /
                              state_of(replicated, dtype, parameters, row.ranks));
      };
      CHECK(saved(Dtype::bf16) == row.mixed[stage - 1]);
      CHECK(saved(Dtype::fp16) == row.mixed[stage - 1]);
      CHECK(saved(Dtype::fp32) == row.fp32[stage - 1]);
    }
  }
}

TEST_CASE("three layers of 2048 with bias in fp32 on 4 ranks: 201, 126, 88 and 50 MB") {
  Options options;
  options.task = Task::mlp;
  options.width = 2048;
  options.layers = 3;
  const Layout layout(architecture(options).sizes(), 0, 4);
  REQUIRE(layout.parameters() == 12589056);
  REQUIRE(layout.full_size() == layout.parameters());
  constexpr double expected[] = {201.4, 125.9, 88.1, 50.4};
  for (int stage = 0; stage <= 3; ++stage) {
    const Prediction plan = predict(*stages[stage], options, layout, 0);
    const double mb = static_cast<double>(resident_state(plan)) / 1e6;
    CHECK(std::abs(mb - expected[stage]) <= 0.05);  // as far as the figures are printed
  }
}

TEST_CASE("every kind of memory, on two layers of text in 16 bit on 3 ranks") {
  Options options = text_options(Dtype::bf16, 16, 2);
  options.batch = 5;
  const Layout layout(architecture(options).sizes(), 1, 3);
  REQUIRE(layout.parameters() == 272 + 4352);
  REQUIRE(layout.full_size() == 288 + 4368);
  constexpr std::int64_t full = 4656, largest = 4368;
  for (const Formulas* formulas : stages) {
    const Prediction plan = predict(*formulas, options, layout, 1000);
    CHECK(of(plan, Kind::communication).resident == 0);
    CHECK(of(plan, Kind::communication).peak == 2 * largest / 3 * 2);
    // 16 + 16 + 256 and twice the largest, 256, for each of 5 samples in 2 bytes
    CHECK(of(plan, Kind::activations).resident == 0);
    CHECK(of(plan, Kind::activations).peak == 5 * (288 + 512) * 2);
    CHECK(of(plan, Kind::workspace).peak == 1 << 20);
    // the file, the codes of 256 bytes (2 numbers each), a target for each of 5 samples
    CHECK(of(plan, Kind::data).resident == 1000 + 256 * 2 * 4 + 5 * 4);
    CHECK(of(plan, Kind::data).peak == of(plan, Kind::data).resident);
    CHECK(of(plan, Kind::optimizer).peak == of(plan, Kind::optimizer).resident);
    CHECK(plan.parameters == 4624);
    CHECK(plan.padded == full);
    CHECK(plan.ranks == 3);
  }
  const Prediction none = predict(replicated, options, layout, 1000);
  CHECK(of(none, Kind::parameters).resident == 2 * full);
  CHECK(of(none, Kind::parameters).peak == 2 * full);
  CHECK(of(none, Kind::gradients).peak == 2 * full);
  CHECK(of(none, Kind::optimizer).resident == 12 * full);
  const Prediction first = predict(sharded_optimizer, options, layout, 1000);
  CHECK(of(first, Kind::gradients).resident == 2 * full);
  CHECK(of(first, Kind::optimizer).resident == 4 * full);
  const Prediction second = predict(sharded_gradients, options, layout, 1000);
  CHECK(of(second, Kind::parameters).resident == 2 * full);
  CHECK(of(second, Kind::gradients).resident == 2 * full / 3);
  CHECK(of(second, Kind::gradients).peak == 2 * full / 3 + 2 * largest);
}

TEST_CASE("a window borrows prefetch + 1 layers and two gradients, or what a run has uses for") {
  for (const int prefetch : {0, 1, 2}) {
    Options options = text_options(Dtype::fp32, 16, 2);
    options.prefetch = prefetch;
    const Layout layout(architecture(options).sizes(), 0, 2);
    const Prediction plan = predict(sharded_all, options, layout, 1000);
    const std::int64_t layer = 4 * layout.largest_layer();
    const Prediction::Bytes& params = of(plan, Kind::parameters);
    CHECK(params.resident == 4 * layout.full_size() / 2);
    CHECK(params.peak == params.resident + (prefetch + 1) * layer);
    CHECK(of(plan, Kind::gradients).peak == of(plan, Kind::gradients).resident + 2 * layer);
    CHECK(of(plan, Kind::optimizer).resident == 8 * layout.full_size() / 2);
  }
  // One layer is used twice in a step (forward, backward), and its gradient once.
  Options options = text_options(Dtype::fp32, 16, 1);
  options.prefetch = 2;
  const Layout layout(architecture(options).sizes(), 0, 2);
  const std::int64_t layer = 4 * layout.largest_layer();
  const auto borrowed = [&](Kind kind) {
    const Prediction::Bytes bytes = of(predict(sharded_all, options, layout, 1000), kind);
    return bytes.peak - bytes.resident;
  };
  CHECK(borrowed(Kind::parameters) == 2 * layer);
  CHECK(borrowed(Kind::gradients) == layer);
  options.accumulate = 2;
  CHECK(borrowed(Kind::parameters) == 3 * layer);
  CHECK(borrowed(Kind::gradients) == 2 * layer);
}

TEST_CASE("elements sent, by phase, with steps skipped and micro-batches") {
  Options options = text_options(Dtype::bf16, 16, 2);
  options.accumulate = 3;
  const Layout layout(architecture(options).sizes(), 0, 4);
  REQUIRE(layout.full_size() == 288 + 4352);
  constexpr std::int64_t once = 4640 / 4 * 3;  // (N - 1) / N of the padded size
  const auto sent = [&](const Formulas& formulas, Phase phase) {
    return predict(formulas, options, layout, 9).sent(phase, 10, 2);
  };
  // A skipped step has no update; forward and backward have been by then.
  CHECK(sent(replicated, Phase::forward) == 0);
  CHECK(sent(replicated, Phase::backward) == 2 * once * 10);
  CHECK(sent(replicated, Phase::update) == 0);
  CHECK(sent(sharded_optimizer, Phase::backward) == once * 10);
  CHECK(sent(sharded_optimizer, Phase::update) == once * 8);
  CHECK(sent(sharded_gradients, Phase::backward) == 3 * once * 10);
  CHECK(sent(sharded_gradients, Phase::update) == once * 8);
  CHECK(sent(sharded_all, Phase::forward) == 3 * once * 10);
  CHECK(sent(sharded_all, Phase::backward) == 6 * once * 10);
  CHECK(sent(sharded_all, Phase::update) == 0);
  CHECK(sent(sharded_all, Phase::setup) == 0);
}

TEST_CASE("padding and scalars sent") {
  Options options = text_options(Dtype::bf16, 16, 2);
  options.accumulate = 3;
  const Layout layout(architecture(options).sizes(), 0, 3);
  REQUIRE(layout.full_size() - layout.parameters() == 16 + 16);
  // All ranks together: each of the padding's elements reaches N - 1 others, times the factor.
  const auto padding = [&](const Formulas& formulas) {
    return predict(formulas, options, layout, 9).padding_sent(10, 4);
  };
  CHECK(padding(replicated) == 2 * 32 * 2 * 10);
  CHECK(padding(sharded_optimizer) == 32 * 2 * (10 + 6));
  CHECK(padding(sharded_gradients) == 32 * 2 * (3 * 10 + 6));
  CHECK(padding(sharded_all) == 32 * 2 * (3 + 6) * 10);
  // Two doubles to each of the others, skipped or not.
  CHECK(predict(replicated, options, layout, 9).scalars_sent(10) == 10 * 2 * 2);
}

TEST_CASE("one rank sends nothing and needs no buffer to receive in") {
  const Options options = text_options(Dtype::bf16, 16, 2);
  const Layout layout(architecture(options).sizes(), 0, 1);
  for (const Formulas* formulas : stages) {
    const Prediction plan = predict(*formulas, options, layout, 9);
    for (const Phase phase : step_phases) CHECK(plan.sent(phase, 10, 0) == 0);
    CHECK(plan.padding_sent(10, 0) == 0);
    CHECK(plan.scalars_sent(10) == 0);
    CHECK(of(plan, Kind::communication).peak == 0);
    CHECK(resident_state(plan) == 16 * layout.full_size());
  }
}

TEST_CASE("the family is read off the traffic of a backward pass") {
  CHECK(family(replicated) == "once a step");
  CHECK(family(sharded_optimizer) == "once a step");
  CHECK(family(sharded_gradients) == "every micro-batch");
  CHECK(family(sharded_all) == "every micro-batch");
}

TEST_CASE("the largest sizes that can be asked for do not overflow") {
  Options options = text_options(Dtype::bf16, 1 << 16, 1 << 12);
  options.task = Task::mlp;
  options.batch = options.accumulate = 1 << 16;
  const Layout layout(architecture(options).sizes(), 0, 1 << 12);
  const Prediction plan = predict(sharded_all, options, layout, 0);
  const auto exact = static_cast<long double>(layout.full_size());
  CHECK(of(plan, Kind::optimizer).resident == 12 * (layout.full_size() >> 12));
  CHECK(of(plan, Kind::activations).peak > 0);
  CHECK(plan.sent(Phase::backward, 1, 0) ==
        static_cast<std::int64_t>(exact * 131072 * 4095 / 4096));
  CHECK(plan.padding_sent(1, 0) >= 0);
}

TEST_CASE("what can be answered alone is, with its exit code; the rest goes on") {
  const Chapter chapter{.name = "05_zero2", .mixed_precision = true};
  Command command;
  command.run = true;
  CHECK(!answer_alone(command, chapter, sharded_gradients));
  command.options.plan = true;
  command.options.data = "no such file";
  CHECK(answer_alone(command, chapter, sharded_gradients) == 3);
}

}  // namespace zero
