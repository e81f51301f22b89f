// SPDX-License-Identifier: MIT
#include "comm/mpi_support.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "compute/stream.hpp"
#include "memory/error.hpp"

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

MpiWorld::MpiWorld() {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

MpiWorld::~MpiWorld() {
  MPI_Comm_free(&comm_);
}

std::vector<std::uint64_t> MpiWorld::gather(std::span<const std::uint64_t> values) const {
  int size = 0;
  check_mpi(MPI_Comm_size(comm_, &size));
  const auto count = static_cast<int>(values.size());
  std::vector<std::uint64_t> all(values.size() * size);
  MPI_Request request;
  check_mpi(MPI_Iallgather(
      values.data(), count, MPI_UINT64_T, all.data(), count, MPI_UINT64_T, comm_, &request));
  finish({&request, 1});
  return all;
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, length);
  name = name.substr(0, name.find_first_of(",\n"));
  const std::string label = " Version:\t";  // MPICH Version:\t4.0.2
  const auto at = name.find(label);
  return at == std::string::npos
             ? name
             : fmt::format("{} {}", name.substr(0, at), name.substr(at + label.size()));
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
