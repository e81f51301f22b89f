// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card zero2{
    .name = "05_zero2",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // p bytes per rank (p: all parameters)
             .gradients = sharded,  // g/n bytes per rank of n (g: all gradients)
             .optimizer = sharded},  // k/n bytes per rank of n (k: all Adam state)
    .sent = {.backward = each_micro_batch(1), .update = once_a_step(1)},
    .borrowed = {.gradients = 1},
};
}  // namespace zero::cards
