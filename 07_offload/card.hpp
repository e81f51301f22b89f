// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card offload{
    .name = "07_offload",
    .mixed_precision = true,
    .held = {.parameters = shard, .gradients = shard, .optimizer = shard_on_host},  // (p + g)/n
    .sent = {.forward = each_micro_batch(1), .backward = each_micro_batch(2)},
    .borrowed = {.parameters = 1, .and_prefetched = true, .gradients = 2},
    .copied = {.down = 1, .up = 1},  // the host holds (g + k)/n: k, and room for both ways
};
}  // namespace zero::cards
