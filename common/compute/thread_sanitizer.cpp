// SPDX-License-Identifier: MIT
#include "compute/race_detector.hpp"

extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);

namespace zero {

void announce_read(const void* data, std::size_t bytes) {
  __tsan_read_range(const_cast<void*>(data), bytes);
}

void announce_write(void* data, std::size_t bytes) {
  __tsan_write_range(data, bytes);
}

}  // namespace zero
