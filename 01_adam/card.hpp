// SPDX-License-Identifier: MIT
#pragma once
#include "train/card.hpp"

namespace zero::cards {
inline constexpr Card adam{
    .name = "01_adam",
    .ranks = false,
    .held = {.parameters = replicated,  // p bytes per rank
             .gradients = replicated,  // g bytes per rank
             .optimizer = replicated},  // k bytes per rank
};
}  // namespace zero::cards
