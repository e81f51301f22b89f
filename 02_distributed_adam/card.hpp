// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card distributed_adam{
    .name = "02_distributed_adam",
    .held = {.parameters = replicated,  // p bytes per rank: all parameters
             .gradients = replicated,  // g bytes per rank: all gradients
             .optimizer = replicated},  // k bytes per rank: all Adam state
    .sent = {.backward = once_a_step(2)},
};
}  // namespace zero::cards
