// SPDX-License-Identifier: MIT
// One way to fail: an error that nobody catches ends the process where it happens, on whatever
// thread, before anything is unwound; so no destructor waits for a rank that is gone.
#pragma once
#include <exception>
#include <functional>
#include <string>

namespace zero {
/// From now on such an error is printed as `who: what`, and `end` is called with its exit code.
/// `end` must not return.
void fail_fast(std::string who, std::function<void(int code)> end);

/// Does that with an error that was not thrown.
[[noreturn]] void fail(const std::exception& error);

/// The exit code that an error ends the program with; 1 for what is a bug of ours.
int exit_code_of(const std::exception& error);
}  // namespace zero
