// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card offload{
    .name = "07_offload",
    .mixed_precision = true,
    .held = {.parameters = sharded,  // p/n bytes per rank: 1/n of all parameters
             .gradients = sharded,  // g/n bytes per rank: 1/n of all gradients
             .optimizer = sharded_on_host},  // k/n host bytes per rank: 1/n of all Adam state
    .sent = {.forward = each_micro_batch(1), .backward = each_micro_batch(2)},
    .borrowed = {.parameters = 1, .and_prefetched = true, .gradients = 2},
    .copied = {.to_host = once_a_step(), .to_device = once_a_step()},  // staging: g/n host bytes
};
}  // namespace zero::cards
