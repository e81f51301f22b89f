// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = replicated,  // p bytes per rank (p: all parameters)
             .gradients = replicated,  // g bytes per rank (g: all gradients)
             .optimizer = replicated},  // k bytes per rank (k: all Adam state)
};
}  // namespace zero::cards
