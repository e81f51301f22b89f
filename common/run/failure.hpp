// SPDX-License-Identifier: MIT
// An uncaught error ends the process at once, on any thread: no destructor waits for a lost rank.
#pragma once
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool system =
      dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const std::system_error*>(&error);
  const int other = system ? static_cast<int>(ExitCode::resources) : 1;
  static const int code = known ? static_cast<int>(known->code) : other;  // for the handler
  // Ends the process even if another thread holds a lock, or MPI waits for a launcher's answer.
  std::signal(SIGALRM, [](int) { std::_Exit(code); });
  alarm(5);
  std::fflush(stdout);
  const char* const short_of = "the system (see ulimit -a) gave no memory, thread or output: ";
  std::fprintf(stderr, "%s: %s%s\n", who_fails.c_str(), system ? short_of : "", error.what());
  std::fflush(stderr);
  end_process(code);
  std::abort();
}

/// The last SIGINT or SIGTERM: a step looks at it, and until the first one a thread.
inline std::atomic<int> noted_signal = 0;
inline std::atomic<bool> starting = true;  // until the first step, or an end before it

/// From now on either is noted; one that comes two seconds later or more ends the process at once.
/// A launcher may pass on what the terminal has sent already: that is the same one.
inline void note_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, [](int came) {
      static std::atomic<std::time_t> first = 0;
      if (first == 0) first = std::time(nullptr);
      if (std::time(nullptr) >= first + 2) std::_Exit(128 + came);
      noted_signal = came;
      // No thread looks during MPI_Init, which may wait for a launcher that the signal has ended.
      if (starting) alarm(3);
    });
  }
  std::signal(SIGALRM, [](int) {
    const int came = noted_signal;
    if (came == 0 || starting) std::_Exit(128 + (came > 0 ? came : SIGALRM));
  });
}

/// From now on an uncaught error, or a write that cannot be made, ends the process in this way.
inline void fail_fast(std::string who, std::function<void(int code)> end) {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  // A sentence in one write: glibc's own are of 128 bytes, and ranks would talk at once.
  static char line[4096];
  std::setvbuf(stderr, line, _IOLBF, sizeof line);
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
