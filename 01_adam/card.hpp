// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = replicated,  // p bytes per rank: all parameters
             .gradients = replicated,  // g bytes per rank: all gradients
             .optimizer = replicated},  // k bytes per rank: all Adam state
};
}  // namespace zero::cards
