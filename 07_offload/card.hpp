// SPDX-License-Identifier: MIT
// (p + g)/n on the device, (g + k)/n on the host beside it.
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card offload{
    .name = "07_offload",
    .mixed_precision = true,
    .held = {.parameters = shard, .gradients = shard, .optimizer = shard_on_host},
    .sent = {.forward = each_micro_batch(1), .backward = each_micro_batch(2)},
    .borrowed = {.parameters = 1, .and_prefetched = true, .gradients = 2},
    .copied = {.down = 1, .up = 1},
};
}  // namespace zero::cards
