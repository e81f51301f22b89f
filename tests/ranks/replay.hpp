// SPDX-License-Identifier: MIT
// One process that plays all ranks of a run, without a communicator, without shards and without
// padding: what every chapter must equal to the last bit. It uses the same model and the same Adam,
// and spells out every rounding of the reduction.
#pragma once
#include "tests/ranks/ranks.hpp"

namespace zero::test {
/// When the ranks' gradients are added: once a step, or for every micro-batch.
enum class Family { once_a_step, every_micro_batch };

inline Family family_of(const Chapter& chapter) {
  return family(chapter) == "once a step" ? Family::once_a_step : Family::every_micro_batch;
}

/// A run on as many ranks as the test has.
Outcome replay(const Options& options, Family family, const MakeData& make);

/// Every verdict and every number of the state, to the last bit. Of a difference the first number
/// is told: elements are counted from 0, steps from 1.
void check_same_run(const Outcome& ours, const Outcome& expected);
void check_same_bits(const std::vector<float>& ours, const std::vector<float>& expected,
                     const char* what, int first = 0);
}  // namespace zero::test
