// SPDX-License-Identifier: MIT
// OpenBLAS is not instrumented, so what it reads and writes is announced to ThreadSanitizer here,
// where the program is linked with it.
#pragma once
#include <cstddef>

extern "C" [[gnu::weak]] void __tsan_read_range(void* address, unsigned long bytes);
extern "C" [[gnu::weak]] void __tsan_write_range(void* address, unsigned long bytes);

namespace zero {

inline void announce_read(const void* data, std::size_t bytes) {
  if (__tsan_read_range) __tsan_read_range(const_cast<void*>(data), bytes);
}

inline void announce_write(void* data, std::size_t bytes) {
  if (__tsan_write_range) __tsan_write_range(data, bytes);
}

}  // namespace zero
