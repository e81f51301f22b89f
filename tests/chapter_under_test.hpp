// SPDX-License-Identifier: MIT
// A chapter's trainer, whichever it is: tests are compiled once for all of them, and linked with
// chapter_under_test.cpp, which is compiled against a chapter's folder.
#pragma once
#include "run/train.hpp"

namespace zero::test {
extern const Card& chapter;
extern MakeTrainer& make_trainer;
}  // namespace zero::test
