// SPDX-License-Identifier: MIT
// Chapters by number, and what the planner is asked of them.
#pragma once
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "notes/plan/plan.hpp"

namespace zero::test {
inline constexpr Convention paper = conventions[0];
inline constexpr Convention no_master{"no master", {{2, 8}}};

inline const Chapter& chapter(const std::string& number) {
  for (const Chapter* card : chapters_on_ranks()) {
    if (std::string(card->name).starts_with(number)) return *card;
  }
  throw std::logic_error("there is no chapter " + number);
}

inline Question about(double parameters, const Convention& convention = paper, double card = 0) {
  return {.options = {.layers = 32, .dtype = Dtype::bf16},
          .parameters = static_cast<std::int64_t>(parameters),
          .convention = convention,
          .device = Device::cuda,
          .card = static_cast<std::int64_t>(card)};
}

/// One chapter's answers.
inline Json answers(const Question& question, const std::string& number, int ranks) {
  const Chapter* const alone[] = {&chapter(number)};
  return make_plan(question, alone, ranks)["chapters"][0];
}
}  // namespace zero::test
