// SPDX-License-Identifier: MIT
// The planner, on the chapters' own cards: published tables, the fewest ranks by brute force.
#include <cmath>

#include "tests/unit/checks.hpp"
#include "tests/unit/questions.hpp"

namespace zero::test {
namespace {
using Bytes = Prediction::Bytes;
const char* const shards[] = {"04", "05", "06"};  // optimizer, gradients, parameters

double resident_gb(const Question& question, const std::string& number, int ranks) {
  return static_cast<double>(plan(question, chapter(number), ranks).sum(&Bytes::resident)) / 1e9;
}

/// A figure as it is printed, in GB.
void check_printed(double gb, const std::string& printed, bool truncated) {
  INFO(gb, " printed as ", printed);
  // Of the last decimal.
  const std::size_t point = printed.find('.');
  const double unit = point == printed.npos ? 1 : std::pow(10, point + 1.0 - printed.size());
  // Padding adds 8 N elements a layer at most. What lies just on a border of the printed unit may
  // go either way.
  const double padding = 3e-3;
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
    for (int cell = 0; cell < 9; ++cell) {
      // The first model's cells are rounded in the paper, the others' are cut off.
      const int model = cell / 3;
      check_printed(resident_gb(about(models[model]), shards[cell % 3], row.ranks), row.cells[cell],
                    model > 0);
    }
  }
}

TEST_CASE("8 billion parameters on 5 ranks and on 3, with master weights and without") {
  const Question with = about(8e9), without = about(8e9, no_master);
  constexpr const char* of_five[][2] = {{"51.2", "45"}, {"38.4", "32"}, {"25.6", "19"}};
  constexpr double times_less[] = {1.8, 2.25, 3};  // without, on 3
  check_printed(resident_gb(with, "03", 5), "128", false);
  check_printed(resident_gb(without, "03", 5), "96", false);
  for (int stage = 0; stage < 3; ++stage) {
    check_printed(resident_gb(with, shards[stage], 5), of_five[stage][0], false);
    check_printed(resident_gb(without, shards[stage], 5), of_five[stage][1], false);
    CHECK(96 / resident_gb(without, shards[stage], 3) == doctest::Approx(times_less[stage]));
  }
}

TEST_CASE("shares of memory saved are 3/4, 7/8 and all of 1 - 1/N in 16 bit, less in fp32") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    Question question = about(1 << 23);  // without padding at each N, in four layers
    question.options.layers = 4;
    question.options.dtype = dtype;
    question.convention.costs = costs_of(dtype);
    const bool mixed = dtype != Dtype::fp32;
    const double shared[] = {mixed ? 3. / 4 : 1. / 2, mixed ? 7. / 8 : 3. / 4, 1};
    const double all = resident_gb(question, "03", 1);
    for (int ranks = 2; ranks <= 1024; ranks *= 2) {
      for (int stage = 0; stage < 3; ++stage) {
        const double saved = 1 - resident_gb(question, shards[stage], ranks) / all;
        CHECK(saved == doctest::Approx(shared[stage] * (1 - 1. / ranks)).epsilon(1e-12));
        const Column column{.chapter = &chapter(shards[stage]), .prediction = {.ranks = ranks}};
        CHECK(column.saved(question) == doctest::Approx(saved).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("7.5 billion parameters on every rank are 120 GB, which no number of 80 GB cards has") {
  const Question question = about(7.5e9, paper, 80e9);
  check_printed(resident_gb(question, "03", 64), "120", false);
  const Fit of = fit(question, chapter("03"));
  CHECK(!of.formula);
  CHECK(!of.reserved);
  CHECK(of.on_every_rank > 120e9);
}

TEST_CASE("the conventions' bytes a parameter, by each chapter's formula") {
  constexpr const char* formulas[][4] = {{"16", "4 + 12/N", "2 + 14/N", "16/N"},
                                         {"18", "6 + 12/N", "2 + 16/N", "18/N"},
                                         {"20", "4 + 16/N", "2 + 18/N", "20/N"},
                                         {"20", "4 + 16/N", "2 + 18/N", "18/N"}};
  for (int i = 0; i < 4; ++i) {
    const Question question = about(1e9, conventions[i]);
    INFO(std::string(conventions[i].name));
    CHECK(state_formula(question, chapter("03")) == formulas[i][0]);
    for (int stage = 0; stage < 3; ++stage) {
      CHECK(state_formula(question, chapter(shards[stage])) == formulas[i][1 + stage]);
    }
  }
  // A whole layer's gradient, too, is of 4 bytes an element: in 05 one of 512 elements.
  Question halves = about(1024, conventions[1]);
  halves.options.layers = 2;
  CHECK(plan(halves, chapter("05"), 4).bytes[static_cast<int>(Kind::gradients)].peak ==
        4 * 1024 / 4 + 4 * 512);
  // DeepSpeed's estimators, of 1024 parameters in one layer on 4 ranks.
  Question deepspeed = about(1024, conventions[3]);
  deepspeed.options.layers = 1;
  CHECK(plan(deepspeed, chapter("05"), 4).sum(&Bytes::peak) == 2 * 1024 + 18 * 1024 / 4);
  CHECK(plan(deepspeed, chapter("06"), 4).sum(&Bytes::peak) == 18 * 1024 / 4 + 4 * 1024);
}

TEST_CASE("elements sent a parameter, as formulas of the micro-batches") {
  const auto formulas = [](const char* number) {
    std::string all = sent_formula(chapter(number));
    for (const Phase phase : step_phases) all += ", " + sent_formula(chapter(number), phase);
    return all;
  };
  CHECK(formulas("02") == "2, 0, 2, 0");
  CHECK(formulas("04") == "2, 0, 1, 1");
  CHECK(formulas("05") == "1 + A, 0, A, 1");
  CHECK(formulas("06") == "3A, A, 2A, 0");
}

TEST_CASE("the fewest ranks: there it fits, and on none fewer, by brute force") {
  for (const double card : {80e9, 24e9, 70.5e9}) {
    for (const Convention& convention : {paper, no_master, conventions[3]}) {
      for (const Chapter* card_of : chapters_on_ranks()) {
        Question question = about(9e9, convention, card);
        question.host = card == 24e9 ? 20e9 : 0;  // less than 07's device needs there
        const auto host = question.host > 0 ? static_cast<double>(question.host) : 1e99;
        const Fit found = fit(question, *card_of);
        INFO(std::string(card_of->name), " ", std::string(convention.name), " ", card);
        std::optional<int> formula, reserved;
        for (int ranks = 300; ranks > 0; --ranks) {
          const Costs costs = convention.costs_in(*card_of);
          const auto state = [&](auto bytes) {
            return bytes ? bytes(2 * 9e9, costs.grads * 9e9, costs.optimizer * 9e9, ranks) : 0;
          };
          const bool room = state(card_of->offload.bytes) <= host;
          if (room && state(card_of->state_bytes) <= card) formula = ranks;
          const Prediction on = plan(question, *card_of, ranks);
          const auto on_host = static_cast<double>(on.sum(&Bytes::peak, Place::host));
          if (on.sum(&Bytes::peak) <= question.card && on_host <= host) reserved = ranks;
        }
        CHECK(found.formula == formula);
        CHECK(found.reserved == reserved);
        const auto on = [&](int ranks) {
          return reserved && ranks > 0 ? plan(question, *card_of, ranks).sum(&Bytes::peak) : 0;
        };
        CHECK(found.bytes == on(reserved.value_or(0)));
        const Prediction then = plan(question, *card_of, reserved.value_or(1));
        CHECK(found.on_host == (reserved ? then.sum(&Bytes::peak, Place::host) : 0));
        CHECK(found.on_one_less == on(reserved.value_or(0) - 1));
        // More would not do either: what is on every rank is too much already.
        CHECK((reserved || found.on_every_rank > question.card));
      }
    }
  }
}

TEST_CASE("the fewest ranks of known models, by the formula alone and with what is borrowed") {
  struct Row {
    double parameters, card;
    const char* number;
    Convention convention;
    int by_formula;
  };
  // ceil(480 / 80), 60 + 420 / N <= 80 with master weights and 60 + 300 / N without, and so on.
  for (const Row& row : {Row{30e9, 80e9, "06", paper, 6},
                         {30e9, 80e9, "05", paper, 21},
                         {30e9, 80e9, "05", no_master, 15},
                         {8e9, 40e9, "05", paper, 5},
                         {8e9, 40e9, "05", no_master, 4}}) {
    const Fit of = fit(about(row.parameters, row.convention, row.card), chapter(row.number));
    CHECK(of.formula == row.by_formula);
    CHECK(of.reserved >= row.by_formula);
  }
  // By hand: layers of 30 / 32 billion, of which 06 borrows 2 + 2, and (N - 1)/N of one arrive:
  // 480 / N + 1.875 (4 + (N - 1)/N) GB are 77.7 on 7 and 89.1 on 6.
  const Fit of = fit(about(30e9, paper, 80e9), chapter("06"));
  CHECK(of.reserved == 7);
  CHECK(of.bytes / 100'000'000 == 776);
  CHECK(of.on_one_less / 100'000'000 == 890);
}

TEST_CASE("layers: equal ones, and one that is larger") {
  Question question = about(1003);
  question.options.layers = 4;
  const auto sizes = [&] {
    const Layout layout = layout_of(question, 1);
    std::vector<std::int64_t> sizes;
    for (int l = 1; l < layout.layers(); ++l) {
      sizes.push_back(layout.layer_start(l) - layout.layer_start(l - 1));
    }
    sizes.push_back(layout.parameters() - layout.layer_start(layout.layers() - 1));
    return sizes;
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK(sizes() == Sizes{251, 251, 251, 250});
  question.largest_layer = 700;
  CHECK(sizes() == Sizes{700, 101, 101, 101});
  for (const std::int64_t largest : {250, 1001, 2000}) {
    question.largest_layer = largest;
    check_refused(ExitCode::usage, {"1 003", "4 layers", grouped(largest)},
                  [&] { layout_of(question, 1); });
  }
  question.largest_layer = 0;
  question.parameters = 3;
  check_refused(ExitCode::usage, {"3 parameters", "4 layers"}, [&] { layout_of(question, 1); });
}

TEST_CASE("where Adam runs on the host: the costs of a parameter, what a device is spared") {
  Question question = about(1 << 23);
  question.options.layers = 4;
  const auto formulas = [&] {
    return state_formula(question, chapter("07")) + ", " +
           state_formula(question, chapter("07"), Place::host);
  };
  const auto saved = [&](int ranks) {
    return Column{.chapter = &chapter("07"), .prediction = {.ranks = ranks}}.saved(question);
  };
  CHECK(formulas() == "4/N, 14/N");
  CHECK(state_formula(question, chapter("06"), Place::host) == "0");
  CHECK(saved(1) == 0.75);
  CHECK(saved(4) == 1 - 0.25 / 4);
  question.convention = {"paper", costs_of(Dtype::fp32), {}, 4};
  question.options.dtype = Dtype::fp32;
  CHECK(formulas() == "8/N, 16/N");
  CHECK(state_formula(question, chapter("06")) == "16/N");
  CHECK(saved(1) == 0.5);
  for (const Place place : {Place::device, Place::host}) {
    const Prediction on = plan(question, chapter("07"), 4);
    CHECK(on.sum(&Bytes::resident, place) == (place == Place::host ? 16 : 8) * (1 << 23) / 4);
  }
  question.convention = {"--bytes", {4, 8}};  // as said, with no master
  CHECK(formulas() == "8/N, 12/N");
}
}  // namespace zero::test
