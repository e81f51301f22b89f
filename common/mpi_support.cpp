// SPDX-License-Identifier: MIT
#include "mpi_support.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "error.hpp"
#include "stream.hpp"

namespace zero {

namespace {

/// The memory of these messages is about to go: nothing may be written to it any more.
void cancel(std::span<MPI_Request> requests) {
  for (MPI_Request& request : requests) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

}  // namespace

void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, words, &length);
  throw Error(ExitCode::communication,
              fmt::format("{}: {}", where.function_name(), std::string(words, length)));
}

void finish(std::span<MPI_Request> requests, std::source_location where) {
  constexpr int yields = 200;
  std::vector<MPI_Status> statuses(requests.size());
  for (int tests = 0, done = 0;; ++tests) {
    const int code =
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& status : statuses) {
        if (status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR, where);
      }
    }
    check_mpi(code, where);
    if (done) return;
    if (Stream::cancelled()) {
      cancel(requests);
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
