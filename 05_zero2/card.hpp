// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card zero2{
    .name = "05_zero2",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // p bytes per rank: all parameters
             .gradients = sharded,  // g/n bytes per rank: 1/n of all gradients
             .optimizer = sharded},  // k/n bytes per rank: 1/n of all Adam state
    .sent = {.backward = each_micro_batch(1), .update = once_a_step(1)},
    .borrowed = {.gradients = 1},
};
}  // namespace zero::cards
