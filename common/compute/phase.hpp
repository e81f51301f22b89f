// SPDX-License-Identifier: MIT
// The phases of a run. Traffic is counted under the phase that needs it.
#pragma once
#include "memory/names.hpp"

namespace zero {
/// load, a part of forward, writes the samples of a micro-batch.
enum class Phase { setup, load, forward, backward, update };
template <>
inline constexpr std::array names_of<Phase>{"setup", "load", "forward", "backward", "update"};
/// The phases of a step in which ranks may send.
inline constexpr Phase step_phases[] = {Phase::forward, Phase::backward, Phase::update};
}  // namespace zero
