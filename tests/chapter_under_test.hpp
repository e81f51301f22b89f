// SPDX-License-Identifier: MIT
// The card and the trainer of the chapter that a program tests. Tests are compiled once. For each
// chapter they are linked with chapter_under_test.cpp, compiled against the chapter's folder.
#pragma once
#include "run/train.hpp"

namespace zero::test {
extern const Card& chapter;
extern MakeTrainer& make_trainer;
}  // namespace zero::test
