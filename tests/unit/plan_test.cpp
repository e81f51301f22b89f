// SPDX-License-Identifier: MIT
// The planner, on the chapters' own cards: published tables, the fewest ranks by brute force, what
// is advised, the times of a step.
#include "notes/plan/plan.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using Bytes = Prediction::Bytes;
constexpr Convention paper = conventions[0], megatron = conventions[1], deepspeed = conventions[2];
constexpr Convention no_master{"no master", CostsBy{{{{2, 8}, {2, 8}, {2, 8}}}}};
const char* const shards[] = {"04", "05", "06"};  // optimizer, gradients, parameters

Question about(double parameters, const Convention& convention = paper, double card = 0) {
  return {.options = {.layers = 32, .dtype = Dtype::bf16},
          .parameters = static_cast<std::int64_t>(parameters),
          .convention = convention,
          .device = DeviceType::cuda,
          .card = static_cast<std::int64_t>(card)};
}

Json answers(const Question& question, const std::string& number, int ranks) {
  const Card* const alone[] = {&card(number)};
  return make_plan(question, alone, ranks)["chapters"][0];
}

std::int64_t peak(const Question& question, const std::string& number, int ranks,
                  Place place = Place::device) {
  return ranks > 0 ? plan(question, card(number), ranks).sum(&Bytes::peak, place) : 0;
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
      const Plan on = plan(about(models[model]), card(shards[cell % 3]), ranks);
      const double gb = static_cast<double>(on.sum(&Bytes::resident)) / 1e9;
      const std::size_t point = printed.find('.');
      const auto decimals = point == printed.npos ? 0 : printed.size() - point - 1;
      const double unit = std::pow(10, decimals);
      // The first model's cells are rounded in the paper, the others' are cut off.
      const double shown = model == 0 ? std::round(gb * unit) : std::floor(gb * unit);
      CHECK(fmt::format("{:.{}f}", shown / unit, decimals) == printed);
    }
  }
}

TEST_CASE("the formulas of each chapter: bytes a parameter by convention, elements sent") {
  using Formulas = std::array<const char*, 6>;  // of 03 to 07, and what 07 has on the host
  // Of Megatron-LM's page all three rows.
  const std::tuple<Convention, Dtype, Formulas> expected[] = {
      {paper, Dtype::bf16, {"16", "4 + 12/N", "2 + 14/N", "16/N", "4/N", "14/N"}},
      {paper, Dtype::fp32, {"16", "8 + 8/N", "4 + 12/N", "16/N", "8/N", "16/N"}},
      {megatron, Dtype::fp16, {"20", "4 + 16/N", "2 + 18/N", "20/N", "4/N", "18/N"}},
      {megatron, Dtype::bf16, {"18", "6 + 12/N", "2 + 16/N", "18/N", "6/N", "16/N"}},
      {megatron, Dtype::fp32, {"16", "8 + 8/N", "4 + 12/N", "16/N", "8/N", "12/N"}},
      {deepspeed, Dtype::bf16, {"20", "4 + 16/N", "2 + 18/N", "18/N", "6/N", "16/N"}},
      {no_master, Dtype::bf16, {"12", "4 + 8/N", "2 + 10/N", "12/N", "4/N", "10/N"}}};
  for (const auto& [convention, dtype, formulas] : expected) {
    Question question = about(1e9, convention);
    question.options.dtype = dtype;
    INFO(std::string(convention.name));
    for (const int at : {0, 1, 2, 3, 4}) {
      CHECK(state_formula(question, *cards::on_ranks[1 + at]) == formulas[at]);
    }
    CHECK(state_formula(question, card("06"), Place::host) == "0");
    CHECK(state_formula(question, card("07"), Place::host) == formulas[5]);
  }
  const char* const sent[] = {"2", "2", "2", "1 + A", "3A", "3A"};  // in phases: notes/cards.json
  for (const int at : {0, 1, 2, 3, 4, 5}) CHECK(sent_formula(*cards::on_ranks[at]) == sent[at]);
  // A whole layer's gradient, too, is of 4 bytes an element: in 05 one of 512 elements.
  Question halves = about(1024, megatron);
  halves.options.layers = 2;
  CHECK(plan(halves, card("05"), 4).bytes[Place::device][Kind::gradients].peak ==
        4 * 1024 / 4 + 4 * 512);
  // DeepSpeed's estimators, of 1024 parameters in one layer on 4 ranks.
  Question estimated = about(1024, deepspeed);
  estimated.options.layers = 1;
  CHECK(peak(estimated, "05", 4) == 2 * 1024 + 18 * 1024 / 4);
  CHECK(peak(estimated, "06", 4) == 18 * 1024 / 4 + 4 * 1024);
}

TEST_CASE("the fewest ranks: there it fits, and on none fewer, by brute force") {
  for (const double card : {80e9, 24e9, 70.5e9}) {
    for (const Convention& convention : {paper, no_master, deepspeed}) {
      for (const Card* of : cards::on_ranks) {
        Question question = about(9e9, convention, card);
        question.host = card == 24e9 ? 20e9 : 0;  // less than 07's device needs there
        const std::int64_t host = question.host > 0 ? question.host : 1e18;
        const Json found = fit(question, *of);
        INFO(std::string(of->name), " ", std::string(convention.name), " ", card);
        int formula = 0, then = 0;  // 0: none
        for (int ranks = 300; ranks > 0; --ranks) {
          const Costs costs = convention.costs_in(*of, Dtype::bf16);
          const auto state = [&](Place place) {
            return of->bytes(place, 2 * 9e9, costs.grads * 9e9, costs.optimizer * 9e9, ranks);
          };
          const bool room = state(Place::host) <= static_cast<double>(host);
          if (room && state(Place::device) <= card) formula = ranks;
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
  const auto sizes = [&] {
    const Layout of = layouts_of(question, 1)[0];
    return std::array{of.used_size(0), of.used_size(1), of.used_size(2), of.used_size(3)};
  };
  CHECK(sizes() == std::array<std::int64_t, 4>{251, 251, 251, 250});
  question.largest_layer = 700;
  CHECK(sizes() == std::array<std::int64_t, 4>{700, 101, 101, 101});
}

TEST_CASE("frozen parameters: their own bytes, padded apart, and no messages but gathers") {
  Question question = about(1000);
  question.frozen = 900;
  question.largest_layer = 500;
  question.options.layers = 3;
  question.options.accumulate = 2;
  question.link = Link{.gbit_per_s = 0, .latency_us = 1000};
  // On 4 ranks the trained 50, 25, 25 are padded to 64, 32, 32 = t, the frozen 450, 225, 225 to
  // 480, 256, 256 = f. Sent are 3/4 of t and f so often: forward, backward, update.
  constexpr std::int64_t t = 128, f = 992, sums = 2 * 3 * 64 / 4;
  constexpr std::int64_t windows = 2 * 2 * (64 + 480) + 2 * 2 * 64 + sums;
  const std::tuple<const char*, std::int64_t, std::int64_t, Json, int> expected[] = {
      {"03", 16 * t + 2 * f, sums, {0, 2 * t, 0}, 6},
      {"04", 4 * t + 12 * t / 4 + 2 * f, sums, {0, t, t}, 6},
      {"05", 2 * t + 14 * t / 4 + 2 * f, 2 * 64 + sums, {0, 2 * t, t}, 9},
      {"06", 16 * t / 4 + 2 * f / 4, windows, {2 * (t + f), 2 * (2 * t + f), 0}, 18},
      {"07", 4 * t / 4 + 2 * f / 4, windows, {2 * (t + f), 2 * (2 * t + f), 0}, 18}};
  for (const auto& [number, held, borrowed, sent, collectives] : expected) {
    const Json told = answers(question, number, 4);
    INFO(std::string(number));
    const bool gathers = card(number).prefetches();
    CHECK(told["frozen_formula"] == (gathers ? "2/N" : "2"));
    CHECK(told["frozen_sent_formula"] == (gathers ? "2A" : "0"));
    CHECK(told["resident"] == held);
    CHECK(told["reserved"] == held + borrowed);
    CHECK(told["on_host"] == (card(number).offloads() ? 14 * t / 4 : 0));
    CHECK(told["copied"]["to_device"] == (card(number).offloads() ? 2 * t / 4 : 0));
    for (int phase = 0; phase < 3; ++phase) {
      const std::int64_t elements = told["phases"][name_of(step_phases[phase])]["elements"];
      CHECK(elements * 4 / 3 == sent[phase]);
    }
    // One message of a layer has both parts, so latency alone counts the collectives.
    CHECK(told["communication_ms"] == doctest::Approx(3 * (collectives + 1)));
  }
}

TEST_CASE("activations and headroom are taken from the card") {
  // 5 a s / h is 80 in GPT-3, by section 4 of arXiv 2205.05198.
  const auto each = [](const char* how) {
    return activations_of(2, 2048, 3, 12288, 96, how).bytes / (2048 * 3 * 12288.);
  };
  CHECK(each("none") == 2 * (34 + 80));
  CHECK(each("attention") == 2 * 34);
  CHECK(each("full") == 2 * 2 + 34 + 80);
  Question question = about(1e9);
  const std::int64_t bare = peak(question, "05", 4);
  CHECK(answers(question, "05", 1)["phases"]["update"]["collectives"] == 0);  // to nobody
  question.activations.bytes = 20'000'000;
  question.headroom = 7;
  for (const int less : {0, 1}) {
    question.card = bare + 20'000'000 + 7 - less;
    CHECK(fit(question, card("05"))["fewest_ranks"] == 4 + less);
    CHECK(answers(question, "05", 4)["fits"] == (less == 0));
  }
}

TEST_CASE("a model by its config.json: layers and activations are those of the programs' llama") {
  // 32 rows, so that no part of the activations is padded.
  Options options{.task = Task::llama, .batch = 2, .width = 64, .layers = 3, .heads = 8};
  options.kv_heads = 2, options.hidden = 176, options.sequence = 16, options.dtype = Dtype::bf16;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("zero-{}", getpid());
  std::ofstream(path) << architecture(options).config;
  const Decoder model = read_config(path);
  std::filesystem::remove(path);
  CHECK(model.sizes() == architecture(options).sizes());
  for (const bool full : {false, true}) {
    options.recompute = full;
    CHECK(activations_of(model, 16, 2, full ? "full" : "none").bytes ==
          architecture(options).activations.bytes);
  }
}

TEST_CASE("of a device's state saved: no master is, that offloading alone needs") {
  Question question = about(1 << 23);
  CHECK(answers(question, "07", 4)["state_saved"] == 1 - 0.25 / 4);
  question.options.dtype = Dtype::fp32;
  CHECK(answers(question, "07", 1)["state_saved"] == 0.5);
}

TEST_CASE("what is advised") {
  const Cards all = cards::on_ranks, to_06 = all.first(5), only_06 = to_06.last(1);
  struct Case {
    Cards cards;
    int ranks;  // 0: the fewest
    double parameters, card, host;  // no host: no end of it
    std::string says;
    int layers = 32, accumulate = 1;
  };
  const Case cases[] = {
      {to_06, 64, 7.5e9, 31e9, 0,
       "Take 05_zero2 on 64 ranks of 31.00 GB: 17.57 GB a rank; 04_zero1 would need 31.87 GB. With "
       "16 micro-batches a step 05_zero2 sends 8.5 times, 06_zero3 24 times what "
       "03_mixed_precision does.",
       32, 16},
      {to_06, 4, 30e9, 80e9, 0,
       "None fits on 4 ranks of 80.00 GB: take 06_zero3 on 7 ranks or more, 77.68 GB a rank."},
      // 10 bytes an element of a layer of 30e9 / 32: two layers of parameters, two of gradients,
      // and what arrives of one.
      {to_06, 0, 30e9, 9e9, 0,
       "None fits in 9.00 GB, on however many ranks: even 06_zero3 keeps 9.37 GB on every rank; "
       "take larger cards or smaller layers."},
      {all.subspan(2, 1), 0, 30e9, 80e9, 0,
       "None fits in 80.00 GB, on however many ranks: even 04_zero1 keeps 121.88 GB on every "
       "rank; take larger cards or a later chapter."},
      // In one layer 06 needs two ranks, 16 / 2 + 2 (3 + 1/2) GB, where one has room for it all.
      {to_06, 0, 1e9, 16e9, 0,
       "Take 03_mixed_precision on 1 rank of 16.00 GB: 16.00 GB a rank, and no chapter sends "
       "less.",
       1},
      {only_06, 0, 1e9, 16e9, 0, "Take 06_zero3 on 2 ranks of 16.00 GB: 15.00 GB a rank.", 1},
      {to_06, 0, 1e13, 40e9, 0,
       "None fits in 40.00 GB on up to 4 096 ranks: take larger cards or smaller layers.", 4096},
      // 4 x 30 / 2 and 4.5 layers of 30 / 32 in 2 bytes; 14 x 30 / 2.
      {all, 0, 30e9, 80e9, 0,
       "Take 07_offload on 2 ranks of 80.00 GB: 68.44 GB a rank and 210.00 GB on its host; "
       "06_zero3 would need 248.44 GB, or 7 ranks."},
      {all, 0, 30e9, 80e9, 106e9,
       "Take 07_offload on 4 ranks of 80.00 GB and 106.00 GB of host: 38.91 GB a rank and 105.00 "
       "GB on its host; 06_zero3 would need 128.91 GB, or 7 ranks."},
      {all, 2, 30e9, 80e9, 106e9,
       "None fits on 2 ranks of 80.00 GB and 106.00 GB of host: take 07_offload on 4 ranks or "
       "more, 38.91 GB a rank and 105.00 GB on its host."}};
  for (const auto& [cards, ranks, parameters, card, host, says, layers, accumulate] : cases) {
    Question question = about(parameters, paper, card);
    question.host = static_cast<std::int64_t>(host);
    question.options.layers = layers;
    question.options.accumulate = accumulate;
    CHECK(make_plan(question, cards, ranks)["advice"] == says);
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
  const auto of = [&](const char* number) { return answers(question, number, 13); };
  const double times[] = {2, 3, 6};
  for (int stage = 0; stage < 3; ++stage) {
    const Json told = of(shards[stage]);
    const double all = 32 * times[stage] * one + sums;
    CHECK(told["communication_ms"] == doctest::Approx(all).epsilon(1e-9));
    const bool beside = stage == 2;
    CHECK(told["step_ms"]["at_best"] ==
          doctest::Approx(beside ? std::max(all, 20.) : all + 20).epsilon(1e-9));
  }
  question.compute_ms = 50;
  CHECK(of("06")["step_ms"]["at_best"] == doctest::Approx(50 + one));
  question.options.prefetch = 0;  // then nothing goes on beside anything
  const double all = of("06")["communication_ms"];
  CHECK(of("06")["step_ms"]["at_best"] == all + 50);
  // Beside 07's copies, 104 x 32 / 13 elements of 2 bytes each way, at 1 byte a microsecond.
  question.bus = 1e-3;
  CHECK(of("06")["copies_ms"] == 0);
  CHECK(of("07")["copies_ms"] == doctest::Approx(2 * 256 * 2e-3));
  CHECK(of("07")["step_ms"]["at_most"] == doctest::Approx(all + 50 + 1.024));
  CHECK(of("07")["step_ms"]["at_best"] == all + 50);
  question.bus = 1e-6;
  CHECK(of("07")["step_ms"]["at_best"] == doctest::Approx(1024));
}
}  // namespace zero::test
