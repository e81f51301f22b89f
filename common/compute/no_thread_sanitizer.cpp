// SPDX-License-Identifier: MIT
#include "compute/race_detector.hpp"

namespace zero {

void announce_read(const void*, std::size_t) {}
void announce_write(void*, std::size_t) {}

}  // namespace zero
