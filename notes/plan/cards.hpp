// SPDX-License-Identifier: MIT
// All chapters' cards.
#pragma once
#include "01_adam/card.hpp"
#include "02_distributed_adam/card.hpp"
#include "03_mixed_precision/card.hpp"
#include "04_zero1/card.hpp"
#include "05_zero2/card.hpp"
#include "06_zero3/card.hpp"
#include "07_offload/card.hpp"

namespace zero::cards {
inline constexpr const Card* all[] = {&adam,  &distributed_adam, &mixed_precision, &zero1, &zero2,
                                      &zero3, &offload};
inline constexpr Cards on_ranks = Cards(all).subspan(1);
}  // namespace zero::cards
