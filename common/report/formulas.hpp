// SPDX-License-Identifier: MIT
// Where the predicted figures come from: the formulas with a run's numbers in them.
#pragma once
#include "report/prediction.hpp"

namespace zero {
/// A heading, a line for each kind of bytes at its peak, and one for each phase's elements sent in
/// a step: "  gradients   4 x (526 336/4 + 65 792) = 789 504". Throws Error (data) as predict does.
std::string formulas(const Chapter& chapter, const Options& options, Device device,
                     const Layout& layout);
}  // namespace zero
