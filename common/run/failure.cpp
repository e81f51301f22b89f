// SPDX-License-Identifier: MIT
#include "run/failure.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>

#include "memory/error.hpp"

namespace zero {
namespace {
std::string name;
std::function<void(int)> end_process;

[[noreturn]] void fail_with_what_was_thrown() {
  if (!std::current_exception()) std::abort();
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    fail(error);
  } catch (...) {
    std::abort();
  }
}
}  // namespace

void fail_fast(std::string who, std::function<void(int)> end) {
  name = std::move(who);
  end_process = std::move(end);
  std::set_terminate(fail_with_what_was_thrown);
}

void fail(const std::exception& error) {
  static std::atomic<bool> failing = false;
  // Another thread is about to end the process.
  while (failing.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());  // throws nothing
  std::fflush(stderr);
  end_process(exit_code_of(error));
  std::abort();
}

int exit_code_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return static_cast<int>(known->code);
  const bool system =
      dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const std::system_error*>(&error);
  if (system) return static_cast<int>(ExitCode::resources);
  return 1;
}
}  // namespace zero
