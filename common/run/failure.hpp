// SPDX-License-Identifier: MIT
// An uncaught error on any thread ends the process at once: destructors might wait for a lost rank.
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
/// fail()'s sentence begins with who_fails. end_process() never returns. failing: fail() has begun.
inline std::string who_fails;
inline std::function<void(int code)> end_process;
inline std::atomic<bool> failing = false;

/// Prints `who: what` and ends the process with the error's exit code; 1 means a bug of ours.
[[noreturn]] inline void fail(const std::exception& error) {
  // If another thread is in fail() already, wait until that thread ends the process.
  while (failing.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool system =
      dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const std::system_error*>(&error);
  const int other = system ? static_cast<int>(ExitCode::resources) : 1;
  static const int code = known ? static_cast<int>(known->code) : other;  // the handler reads it
  // The alarm ends the process in 5 s even if a thread holds a lock, or MPI waits for the launcher.
  std::signal(SIGALRM, [](int) { std::_Exit(code); });
  alarm(5);
  std::fflush(stdout);
  const char* const short_of = "the system (see ulimit -a) gave no memory, thread or output: ";
  std::fprintf(stderr, "%s: %s%s\n", who_fails.c_str(), system ? short_of : "", error.what());
  std::fflush(stderr);
  end_process(code);
  std::abort();
}

/// The last SIGINT or SIGTERM; 0: none. Training reads it: a thread before step 1, run() later.
inline std::atomic<int> noted_signal = 0;
inline std::atomic<bool> starting = true;  // before the first step

/// Makes SIGINT and SIGTERM set noted_signal. A signal two or more seconds after the first one ends
/// the process at once; a sooner one may be the same keystroke, passed on by the launcher.
inline void note_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, [](int came) {
      static std::atomic<std::time_t> first = 0;
      if (first == 0) first = std::time(nullptr);
      if (std::time(nullptr) >= first + 2) std::_Exit(128 + came);
      noted_signal = came;
      // The alarm ends a process whose MPI_Init waits for a launcher that the signal has ended.
      if (starting) alarm(3);
    });
  }
  std::signal(SIGALRM, [](int) {
    const int came = noted_signal;
    if (came == 0 || starting) std::_Exit(128 + (came > 0 ? came : SIGALRM));
  });
}

/// From now on an uncaught error ends the process by fail(); a failed write is an error, no signal.
inline void fail_fast(std::string who, std::function<void(int code)> end) {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  // Each line of stderr is one write, so that the lines of several ranks do not mix.
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
