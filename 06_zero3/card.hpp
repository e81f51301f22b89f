// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card zero3{
    .name = "06_zero3",
    .mixed_precision = true,
    .held = {.parameters = sharded,  // p/n bytes per rank: 1/n of all parameters
             .gradients = sharded,  // g/n bytes per rank: 1/n of all gradients
             .optimizer = sharded},  // k/n bytes per rank: 1/n of all Adam state
    .sent = {.forward = each_micro_batch(1), .backward = each_micro_batch(2)},
    .borrowed = {.parameters = 1, .and_prefetched = true, .gradients = 2},
};
}  // namespace zero::cards
