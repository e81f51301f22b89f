// SPDX-License-Identifier: MIT
// One way to fail: an error that nobody catches ends the process where it happens, on whatever
// thread, before anything is unwound; so no destructor waits for a rank that is gone.
#pragma once
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <system_error>
#include <thread>

#include "memory/error.hpp"

namespace zero {
/// Who fails, and what ends the process with an exit code; does not return.
inline std::string who_fails;
inline std::function<void(int code)> end_process;
inline std::atomic<bool> failing = false;

/// Prints `who: what` and ends the process with the error's exit code: 1 for what is a bug of ours.
[[noreturn]] inline void fail(const std::exception& error) {
  // Another thread is about to end the process.
  while (failing.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::fflush(stdout);
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool system =
      dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const std::system_error*>(&error);
  const char* const short_of = "the system (see ulimit -a) gave no memory, thread or output: ";
  std::fprintf(stderr, "%s: %s%s\n", who_fails.c_str(), system ? short_of : "", error.what());
  std::fflush(stderr);
  const int other = system ? static_cast<int>(ExitCode::resources) : 1;
  end_process(known ? static_cast<int>(known->code) : other);
  std::abort();
}

/// From now on an error that nobody catches ends the process in this way, and so does a write that
/// cannot be made, instead of a signal.
inline void fail_fast(std::string who, std::function<void(int code)> end) {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  // The first file that is opened would get the number of an output that is missing, and its text.
  // Nobody reads a sentence on a missing standard error; standard output is missed when written to.
  for (const int fd : {0, 1, 2}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR);
  }
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
