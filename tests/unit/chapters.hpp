// SPDX-License-Identifier: MIT
// Chapters by number.
#pragma once
#include <stdexcept>

#include "train/chapter.hpp"

namespace zero::test {
inline const Chapter& chapter(const std::string& number) {
  for (const Chapter* card : chapters_on_ranks()) {
    if (std::string(card->name).starts_with(number)) return *card;
  }
  throw std::logic_error("there is no chapter " + number);
}
}  // namespace zero::test
