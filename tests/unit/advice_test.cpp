// SPDX-License-Identifier: MIT
// What the planner advises, on the chapters' own cards, and the times of a step that it gives.
#include "tests/unit/checks.hpp"
#include "tests/unit/questions.hpp"

namespace zero::test {
TEST_CASE("what is advised") {
  const auto all = chapters_on_ranks().first(5);  // to 06
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
        "With 16 micro-batches a step 05_zero2 sends 8.5 times, 06_zero3 24 times what "
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
  CHECK(fit(thick, chapter("06"))["fewest_ranks"] == 2);
  CHECK(advice(make_plan(thick, all.last(1), 2)) ==
        "Take 06_zero3 on 2 ranks of 16.00 GB: 15.00 GB a rank.");
  Question thin = about(1e13, paper, 40e9);
  thin.options.layers = 4096;
  CHECK(advice(make_plan(thin, all, 0)) ==
        "None fits in 40.00 GB on up to 4096 ranks: take larger cards or smaller layers.");
}

TEST_CASE("what is advised where the host has room, or too little") {
  const auto says = [](double parameters, double card, double host, int ranks, bool alone = false) {
    Question question = about(parameters, paper, card);
    question.host = static_cast<std::int64_t>(host);
    const auto all = chapters_on_ranks();
    return advice(make_plan(question, alone ? all.last(1) : all, ranks));
  };
  // 4 x 30 / 2 and 4.5 layers of 30 / 32 in 2 bytes; 14 x 30 / 2.
  const std::string two =
      "Take 07_offload on 2 ranks of 80.00 GB: 68.44 GB a rank and 210.00 GB on its host; "
      "06_zero3 would need 248.44 GB, or 7 ranks.";
  CHECK(says(30e9, 80e9, 0, 0) == two);
  CHECK(says(30e9, 80e9, 0, 2) == two);
  CHECK(says(30e9, 80e9, 106e9, 0) ==
        "Take 07_offload on 4 ranks of 80.00 GB and 106.00 GB of host: 38.91 GB a rank and 105.00 "
        "GB on its host; 06_zero3 would need 128.91 GB, or 7 ranks.");
  CHECK(says(30e9, 80e9, 50e9, 0).starts_with("Take 06_zero3 on 7 ranks of 80.00 GB and 50.00 GB"));
  CHECK(says(30e9, 80e9, 106e9, 2) ==
        "None fits on 2 ranks of 80.00 GB and 106.00 GB of host: take 07_offload on 4 ranks or "
        "more, 38.91 GB a rank and 105.00 GB on its host.");
  CHECK(says(30e9, 80e9, 1e6, 0, true) ==
        "None fits in 80.00 GB and 1.00 MB of host on up to 4096 ranks: take larger cards or "
        "smaller layers.");
  CHECK(says(13e9, 80e9, 0, 1, true) ==
        "Take 07_offload on 1 rank of 80.00 GB: 55.25 GB a rank and 182.00 GB on its host.");
}

TEST_CASE("a plan is about the chapters that have the dtype") {
  for (const auto& [dtype, count] : {std::pair{Dtype::bf16, 5u}, {Dtype::fp32, 6u}}) {
    Question question = about(1e6);
    question.options.dtype = dtype;
    CHECK(make_plan(question, chapters_on_ranks(), 4)["chapters"].size() == count);
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
  const char* const numbers[] = {"04", "05", "06"};
  const double times[] = {2, 3, 6};
  for (int stage = 0; stage < 3; ++stage) {
    const Json told = of(numbers[stage]);
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
  question.options.prefetch = 1;
  CHECK(of("07")["step_ms"]["at_best"] == doctest::Approx(1024));
  CHECK(Link{.gbit_per_s = 1, .latency_us = 5}.time(1000, 1).count() == 0);
}
}  // namespace zero::test
