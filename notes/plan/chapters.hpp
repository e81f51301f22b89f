// SPDX-License-Identifier: MIT
// The cards of all chapters.
#pragma once
#include <span>

#include "train/chapter.hpp"

namespace zero {
/// Of those that run on ranks, in their order.
std::span<const Chapter* const> chapters_on_ranks();
}  // namespace zero
