// SPDX-License-Identifier: MIT
// Where every machine has the vectors that the compiler uses anyway.
#pragma once

namespace zero {
template <class Loop> void on_wide_vectors(const Loop& loop) { loop(); }
}  // namespace zero
