// SPDX-License-Identifier: MIT
// A run in which one stream is always late.
#pragma once
#include <doctest/doctest.h>

#include "tests/ranks/replay.hpp"
#include "tests/unit/checks.hpp"
namespace zero::test {
inline constexpr std::chrono::milliseconds late_by{2};

/// Enough layers that slots and gradient buffers are used again within forward and backward.
inline Options schedule_options(int prefetch, Dtype dtype, int micro_batches) {
  Options options = mlp_options(24, 5, dtype);
  options.batch = options.steps = 4;
  options.accumulate = micro_batches;
  options.prefetch = prefetch;
  return options;
}

/// The runs equal the replay's: four steps, of which the third is skipped.
inline void check_equal_replay(int prefetch) {
  for (const int micro_batches : {1, 2}) {
    const Dtype dtype = micro_batches == 1 ? Dtype::fp32 : Dtype::bf16;
    INFO(std::string(name_of(dtype)), ", micro-batches: ", micro_batches);
    const Options options = schedule_options(prefetch, dtype, micro_batches);
    const MakeData make =
        poisoned_data(options, 3 * micro_batches * ranks().size * options.batch - 1);
    const Outcome outcome = run(options, make);
    check_same_run(outcome, replay(options, Family::every_micro_batch, make));
    for (int s = 0; s < options.steps; ++s) CHECK(outcome.verdicts[s].skipped == (s == 2));
  }
}

inline void check_with_late(const char* stream, int prefetch) {
  const Delay delay(stream, late_by);
  check_equal_replay(prefetch);
}
}  // namespace zero::test
