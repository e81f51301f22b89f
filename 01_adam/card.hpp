// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = replicated,  // bytes: p
             .gradients = replicated,  // + g
             .optimizer = replicated},  // + k
};
}  // namespace zero::cards
