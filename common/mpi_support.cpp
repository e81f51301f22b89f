// SPDX-License-Identifier: MIT
#include "mpi_support.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <thread>

#include "error.hpp"
#include "stream.hpp"

namespace zero {

void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, words, &length);
  throw Error(ExitCode::communication,
              fmt::format("{}: {}", where.function_name(), std::string(words, length)));
}

void finish(std::span<MPI_Request> requests) {
  constexpr int yields = 200;
  for (int tests = 0, done = 0;; ++tests) {
    check_mpi(MPI_Testall(
        static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return;
    if (Stream::cancelled()) {
      throw Error(ExitCode::communication, "stopped waiting for the other ranks");
    }
    if (tests < yields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace zero
