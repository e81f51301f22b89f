// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card distributed_adam{
    .name = "02_distributed_adam",
    .held = {.parameters = whole, .gradients = whole, .optimizer = whole},  // p + g + k
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
