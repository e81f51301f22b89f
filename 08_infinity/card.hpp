// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card infinity{
    .name = "08_infinity",
    .mixed_precision = true,
    .held = {.parameters = sharded_on_host,  // p/n host bytes per rank: 1/n of all parameters
             .gradients = sharded_on_host,  // g/n host bytes per rank: 1/n of all gradients
             .optimizer = sharded_on_disk},  // k/n disk bytes per rank: 1/n of all Adam state
    .sent = {.forward = each_micro_batch(1), .backward = each_micro_batch(2)},
    .borrowed = {.parameters = 1, .and_prefetched = true, .gradients = 2, .pieces = 3},
    .copied = {.to_host = each_micro_batch(1), .to_device = each_micro_batch(2)},
};
}  // namespace zero::cards
