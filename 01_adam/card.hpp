// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = whole, .gradients = whole, .optimizer = whole},  // bytes: p + g + k
};
}  // namespace zero::cards
