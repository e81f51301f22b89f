// SPDX-License-Identifier: MIT
#include "tests/chapter_under_test.hpp"

#include "trainer.hpp"

namespace zero::test {
const Card& chapter = Trainer::card;
MakeTrainer& make_trainer = zero::make_trainer<Trainer>;
}  // namespace zero::test
