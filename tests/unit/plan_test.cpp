// SPDX-License-Identifier: MIT
// The planner, on the chapters' own cards: published tables, the fewest ranks by brute force.
#include <cmath>

#include "tests/unit/checks.hpp"
#include "tests/unit/questions.hpp"

namespace zero::test {
namespace {
using Bytes = Prediction::Bytes;
const char* const shards[] = {"04", "05", "06"};  // optimizer, gradients, parameters

std::int64_t peak(const Question& question, const std::string& number, int ranks,
                  Place place = Place::device) {
  return ranks > 0 ? plan(question, chapter(number), ranks).sum(&Bytes::peak, place) : 0;
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
  for (const auto& [ranks, cells] : rows) {
    for (int cell = 0; cell < 9; ++cell) {
      const int model = cell / 3;
      const std::string printed = cells[cell];
      const Prediction on = plan(about(models[model]), chapter(shards[cell % 3]), ranks);
      const double gb = static_cast<double>(on.sum(&Bytes::resident)) / 1e9;
      const double above = gb - std::atof(printed.c_str());
      INFO(gb, " printed as ", printed);
      // The first model's cells are rounded in the paper, the others' are cut off: within a unit of
      // the last decimal.
      const std::size_t point = printed.find('.');
      const double unit = point == printed.npos ? 1 : std::pow(10, point + 1.0 - printed.size());
      // Padding adds 8 N elements a layer at most. What lies just on a border of the printed unit
      // may go either way.
      const double padding = 3e-3, least = model > 0 ? 0 : -unit / 2;
      CHECK(above >= least - padding);
      CHECK(above <= least + unit + padding);
    }
  }
}

TEST_CASE("shares of memory saved are 3/4, 7/8 and all of 1 - 1/N in 16 bit, less in fp32") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    const bool mixed = dtype != Dtype::fp32;
    Question question = about(1 << 23);
    question.options.dtype = dtype;
    const double shared[] = {mixed ? 3. / 4 : 1. / 2, mixed ? 7. / 8 : 3. / 4, 1};
    for (const int ranks : {2, 64}) {
      for (int stage = 0; stage < 3; ++stage) {
        CHECK(answers(question, shards[stage], ranks)["state_saved"] ==
              doctest::Approx(shared[stage] * (1 - 1. / ranks)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("the conventions' bytes a parameter, by each chapter's formula") {
  const std::pair<Convention, std::array<const char*, 4>> expected[] = {
      {conventions[0], {"16", "4 + 12/N", "2 + 14/N", "16/N"}},
      {conventions[1], {"18", "6 + 12/N", "2 + 16/N", "18/N"}},
      {conventions[2], {"20", "4 + 16/N", "2 + 18/N", "20/N"}},
      {conventions[3], {"20", "4 + 16/N", "2 + 18/N", "18/N"}},
      {no_master, {"12", "4 + 8/N", "2 + 10/N", "12/N"}}};
  for (const auto& [convention, formulas] : expected) {
    const Question question = about(1e9, convention);
    INFO(std::string(convention.name));
    CHECK(state_formula(question, chapter("03")) == formulas[0]);
    for (int stage = 0; stage < 3; ++stage) {
      CHECK(state_formula(question, chapter(shards[stage])) == formulas[1 + stage]);
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
  CHECK(peak(deepspeed, "05", 4) == 2 * 1024 + 18 * 1024 / 4);
  CHECK(peak(deepspeed, "06", 4) == 18 * 1024 / 4 + 4 * 1024);
}

TEST_CASE("elements sent a parameter, as formulas of the micro-batches") {
  const auto formulas = [](const char* number) {
    std::string all = sent_formula(chapter(number));
    for (const Phase& phase : step_phases) all += ", " + sent_formula(chapter(number), {&phase, 1});
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
      for (const Chapter* of : chapters_on_ranks()) {
        Question question = about(9e9, convention, card);
        question.host = card == 24e9 ? 20e9 : 0;  // less than 07's device needs there
        const std::int64_t host = question.host > 0 ? question.host : 1e18;
        const Json found = fit(question, *of);
        INFO(std::string(of->name), " ", std::string(convention.name), " ", card);
        int formula = 0, then = 0;  // 0: none
        for (int ranks = 300; ranks > 0; --ranks) {
          const Costs costs = convention.costs_in(*of, Dtype::bf16);
          const auto state = [&](auto bytes) {
            return bytes ? bytes(2 * 9e9, costs.grads * 9e9, costs.optimizer * 9e9, ranks) : 0;
          };
          const bool room = state(of->offload.bytes) <= static_cast<double>(host);
          if (room && state(of->state_bytes) <= card) formula = ranks;
          const bool on_host = peak(question, of->name, ranks, Place::host) <= host;
          if (on_host && peak(question, of->name, ranks) <= question.card) then = ranks;
        }
        const auto or_null = [](int ranks) { return ranks > 0 ? Json(ranks) : Json(); };
        CHECK(found["fewest_ranks_by_formula"] == or_null(formula));
        CHECK(found["fewest_ranks"] == or_null(then));
        CHECK(found["reserved_then"] == peak(question, of->name, then));
        CHECK(found["on_host_then"] == peak(question, of->name, then, Place::host));
        CHECK(found["reserved_on_one_less"] == peak(question, of->name, then - 1));
        // More would not do either: what is on every rank is too much already.
        CHECK((then > 0 || found["on_every_rank"] > question.card));
      }
    }
  }
}

TEST_CASE("layers: equal ones, and one that is larger") {
  Question question = about(1003);
  question.options.layers = 4;
  const auto starts = [&] {
    const Layout layout = layout_of(question, 1);
    return std::array{layout.layer_start(1), layout.layer_start(2), layout.layer_start(3),
                      layout.parameters()};
  };
  using Starts = std::array<std::int64_t, 4>;
  CHECK(starts() == Starts{251, 502, 753, 1003});
  question.largest_layer = 700;
  CHECK(starts() == Starts{700, 801, 902, 1003});
  for (const std::int64_t largest : {250, 1001, 2000}) {
    question.largest_layer = largest;
    check_refused(ExitCode::usage, {"1 003", "4 layers", grouped(largest)},
                  [&] { layout_of(question, 1); });
  }
}

TEST_CASE("where Adam runs on the host: the costs of a parameter, what a device is spared") {
  Question question = about(1 << 23);
  const auto formulas = [&] {
    return state_formula(question, chapter("07")) + ", " +
           state_formula(question, chapter("07"), Place::host);
  };
  CHECK(formulas() == "4/N, 14/N");
  CHECK(state_formula(question, chapter("06"), Place::host) == "0");
  CHECK(answers(question, "07", 1)["state_saved"] == 0.75);
  CHECK(answers(question, "07", 4)["state_saved"] == 1 - 0.25 / 4);
  question.options.dtype = Dtype::fp32;
  CHECK(formulas() == "8/N, 16/N");
  CHECK(state_formula(question, chapter("06")) == "16/N");
  CHECK(answers(question, "07", 1)["state_saved"] == 0.5);
  CHECK(answers(question, "07", 4)["resident"] == 8 * (1 << 23) / 4);
  CHECK(peak(question, "07", 4, Place::host) == 16 * (1 << 23) / 4);
  question.convention = {"--bytes", {{4, 8}}};  // as said, with no master
  CHECK(formulas() == "8/N, 12/N");
  CHECK(peak(question, "07", 4, Place::host) == 12 * (1 << 23) / 4);
}
}  // namespace zero::test
