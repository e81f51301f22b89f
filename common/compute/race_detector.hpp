// SPDX-License-Identifier: MIT
// OpenBLAS is not instrumented, so what it reads and writes is announced to ThreadSanitizer here.
// Which file is compiled (thread_sanitizer.cpp or no_thread_sanitizer.cpp) is the build's choice.
#pragma once
#include <cstddef>

namespace zero {

void announce_read(const void* data, std::size_t bytes);
void announce_write(void* data, std::size_t bytes);

}  // namespace zero
