// SPDX-License-Identifier: MIT
// p + g + k: one process holds all of it.
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = whole, .gradients = whole, .optimizer = whole},
};
}  // namespace zero::cards
