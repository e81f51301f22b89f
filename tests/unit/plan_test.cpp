// SPDX-License-Identifier: MIT
// The planner, on the chapters' own cards: published tables, the fewest ranks by brute force, what
// it advises.
#include "notes/plan/plan.hpp"

#include <cmath>

#include "notes/plan/chapters.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using Bytes = Prediction::Bytes;
constexpr Convention paper = conventions[0];
constexpr Convention no_master{"no master", {2, 8}};

const Chapter& chapter(const std::string& number) {
  for (const Chapter* card : chapters_on_ranks()) {
    if (std::string(card->name).starts_with(number)) return *card;
  }
  throw std::logic_error("there is no chapter " + number);
}
const char* const shards[] = {"04", "05", "06"};  // optimizer, gradients, parameters

Question about(double parameters, const Convention& convention = paper, double card = 0) {
  return {.options = {.layers = 32, .dtype = Dtype::bf16},
          .parameters = static_cast<std::int64_t>(parameters),
          .convention = convention,
          .device = Device::cuda,
          .card = static_cast<std::int64_t>(card)};
}

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
        const Question question = about(9e9, convention, card);
        const Fit found = fit(question, *card_of);
        INFO(std::string(card_of->name), " ", std::string(convention.name), " ", card);
        std::optional<int> formula, reserved;
        for (int ranks = 300; ranks > 0; --ranks) {
          const Costs& costs = convention.costs_in(*card_of);
          const double state =
              card_of->state_bytes(2 * 9e9, costs.grads * 9e9, costs.optimizer * 9e9, ranks);
          if (state <= card) formula = ranks;
          const Prediction on = plan(question, *card_of, ranks);
          if (on.sum(&Bytes::peak) <= question.card) reserved = ranks;
        }
        CHECK(found.formula == formula);
        CHECK(found.reserved == reserved);
        const auto on = [&](int ranks) {
          return reserved && ranks > 0 ? plan(question, *card_of, ranks).sum(&Bytes::peak) : 0;
        };
        CHECK(found.bytes == on(reserved.value_or(0)));
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

TEST_CASE("what is advised") {
  const auto all = chapters_on_ranks();
  const auto says = [&](double parameters, double card, int ranks, int accumulate = 1) {
    Question question = about(parameters, paper, card);
    question.options.accumulate = accumulate;
    return advice(make_plan(question, all, ranks));
  };
  CHECK(says(1e9, 80e9, 4) ==
        "Take 03_mixed_precision on 4 ranks of 80.00 GB: 16.05 GB a rank, and no chapter sends "
        "less.");
  CHECK(says(7.5e9, 24e9, 64) ==
        "Take 05_zero2 on 64 ranks of 24.00 GB: 17.57 GB a rank; 04_zero1 would need 31.87 GB.");
  CHECK(says(7.5e9, 24e9, 64, 16) ==
        "Take 05_zero2 on 64 ranks of 24.00 GB: 17.57 GB a rank; 04_zero1 would need 31.87 GB. "
        "With 16 micro-batches a step 05_zero2 sends 8.5 times and 06_zero3 sends 24 times what "
        "03_mixed_precision does.");
  CHECK(says(30e9, 80e9, 4) ==
        "None fits on 4 ranks of 80.00 GB: take 06_zero3 on 7 ranks or more, 77.68 GB a rank.");
  CHECK(says(30e9, 80e9, 0).starts_with("Take 06_zero3 on 7 ranks of 80.00 GB: 77.68 GB"));
  // 10 bytes an element of a layer of 30e9 / 32: two layers of parameters, two of gradients, and
  // what arrives of one.
  CHECK(says(30e9, 9e9, 0) ==
        "None fits in 9.00 GB, on however many ranks: even 06_zero3 keeps 9.37 GB on every "
        "rank; take larger cards or smaller layers.");
  CHECK(advice(make_plan(about(30e9, paper, 80e9), all.subspan(2, 1), 0)) ==
        "None fits in 80.00 GB, on however many ranks: even 04_zero1 keeps 121.88 GB on every "
        "rank; take larger cards or a later chapter.");
  // 3.125 + (160 - 0.625) / N TB
  CHECK(says(1e13, 33e11, 0).starts_with("Take 06_zero3 on 911 ranks of 3.30 TB"));
  // In one layer 06 needs two ranks, 16 / 2 + 2 (3 + 1/2) GB, where one has room for it all.
  Question thick = about(1e9, paper, 16e9);
  thick.options.layers = 1;
  CHECK(advice(make_plan(thick, all, 0)) ==
        "Take 03_mixed_precision on 1 rank of 16.00 GB: 16.00 GB a rank, and no chapter sends "
        "less.");
  CHECK(fit(thick, chapter("06")).reserved == 2);
  CHECK(advice(make_plan(thick, all.last(1), 2)) ==
        "Take 06_zero3 on 2 ranks of 16.00 GB: 15.00 GB a rank.");
  Question thin = about(1e13, paper, 40e9);
  thin.options.layers = 4096;
  CHECK(advice(make_plan(thin, all, 0)) ==
        "None fits in 40.00 GB on up to 4096 ranks: take larger cards or smaller layers.");
}

TEST_CASE("a plan is about the chapters that have the dtype") {
  for (const auto& [dtype, count] : {std::pair{Dtype::bf16, 4u}, {Dtype::fp32, 5u}}) {
    Question question = about(1e6);
    question.options.dtype = dtype;
    CHECK(make_plan(question, chapters_on_ranks(), 4).columns.size() == count);
  }
}

TEST_CASE("the time of a step: collectives one after the other, or beside the computation") {
  Question question = about(3200);  // 32 layers of 100, padded to 104 on 13 ranks
  question.options.accumulate = 2;
  question.options.prefetch = 1;
  question.link = Link{.gbit_per_s = 8, .latency_us = 10};  // 1 byte a nanosecond
  question.compute_ms = 20;
  // A collective of a layer: 12 (10 us + 208 bytes / 13 / (1 byte/ns)), the sums' of 16 bytes each.
  const double one = 12 * (10e-3 + 16e-6), sums = one;
  const auto column = [&](const char* number) {
    return Column{.chapter = &chapter(number), .prediction = plan(question, chapter(number), 13)};
  };
  const double times[] = {2, 3, 6};
  for (int stage = 0; stage < 3; ++stage) {
    const Column of = column(shards[stage]);
    const double all = 32 * times[stage] * one + sums;
    CHECK(of.communication_ms(question) == doctest::Approx(all).epsilon(1e-9));
    const bool beside = stage == 2;
    CHECK(of.least_step_ms(question) ==
          doctest::Approx(beside ? std::max(all, 20.) : all + 20).epsilon(1e-9));
  }
  question.compute_ms = 50;
  CHECK(column("06").least_step_ms(question) == doctest::Approx(50 + 2 * one));
  question.options.prefetch = 0;  // then nothing goes on beside anything
  const Column waits = column("06");
  CHECK(waits.least_step_ms(question) == waits.communication_ms(question) + 50);
  CHECK(Link{.gbit_per_s = 1, .latency_us = 5}.time(1000, 1).count() == 0);
}
}  // namespace zero::test
