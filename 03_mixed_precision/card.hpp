// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card mixed_precision{
    .name = "03_mixed_precision",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // p bytes per rank (p: all parameters)
             .gradients = replicated,  // g bytes per rank (g: all gradients)
             .optimizer = replicated},  // k bytes per rank (k: all Adam state)
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
