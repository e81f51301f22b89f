// SPDX-License-Identifier: MIT
// One way to fail: an error that nobody catches ends the process where it happens, on whatever
// thread, before anything is unwound; so no destructor waits for a rank that is gone.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <system_error>
#include <thread>

#include "memory/error.hpp"

namespace zero {
/// Who fails, and what ends the process with an exit code; does not return.
inline std::string who_fails;
inline std::function<void(int code)> end_process;

/// Prints `who: what` and ends the process with the error's exit code: 1 for what is a bug of ours.
[[noreturn]] inline void fail(const std::exception& error) {
  static std::atomic<bool> failing = false;
  // Another thread is about to end the process.
  while (failing.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", who_fails.c_str(), error.what());  // throws nothing
  std::fflush(stderr);
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool system =
      dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const std::system_error*>(&error);
  const int other = system ? static_cast<int>(ExitCode::resources) : 1;
  end_process(known ? static_cast<int>(known->code) : other);
  std::abort();
}

/// For a watchdog.
[[noreturn]] inline void fail_waiting(const std::string& what) {
  fail(Error(ExitCode::communication, what));
}

/// From now on an error that nobody catches ends the process in this way.
inline void fail_fast(std::string who, std::function<void(int code)> end) {
  who_fails = std::move(who);
  end_process = std::move(end);
  std::set_terminate([] {
    try {
      if (std::current_exception()) throw;
    } catch (const std::exception& error) {
      fail(error);
    } catch (...) {
    }
    std::abort();
  });
}
}  // namespace zero
