// SPDX-License-Identifier: MIT
// p + g + k: each rank holds all of it.
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card distributed_adam{
    .name = "02_distributed_adam",
    .held = {.parameters = whole, .gradients = whole, .optimizer = whole},
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
