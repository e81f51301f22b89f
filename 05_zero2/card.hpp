// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card zero2{
    .name = "05_zero2",
    .mixed_precision = true,
    .held = {.parameters = replicated,  // bytes: p
             .gradients = sharded,  // + g/n
             .optimizer = sharded},  // + k/n
    .sent = {.backward = each_micro_batch(1), .update = once_a_step(1)},
    .borrowed = {.gradients = 1},
};
}  // namespace zero::cards
