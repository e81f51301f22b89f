// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card zero1{
    .name = "04_zero1",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // p bytes per rank: all parameters
             .gradients = replicated,  // g bytes per rank: all gradients
             .optimizer = sharded},  // k/n bytes per rank: 1/n of all Adam state
    .sent = {.backward = once_a_step(1), .update = once_a_step(1)},
};
}  // namespace zero::cards
