// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card mixed_precision{
    .name = "03_mixed_precision",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // p bytes per rank: all parameters
             .gradients = replicated,  // g bytes per rank: all gradients
             .optimizer = replicated},  // k bytes per rank: all Adam state
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
