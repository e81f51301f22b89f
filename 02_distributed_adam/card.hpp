// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card distributed_adam{
    .name = "02_distributed_adam",
    .held = {.parameters = replicated,  // bytes: p
             .gradients = replicated,  // + g
             .optimizer = replicated},  // + k
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
