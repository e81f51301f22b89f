// SPDX-License-Identifier: MIT
#include "comm/mpi.hpp"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <thread>

#include "compute/watchdog.hpp"
#include "memory/error.hpp"

namespace zero {
void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, words, &length);
  throw Error(ExitCode::communication,
              fmt::format("{}: {}", where.function_name(), std::string(words, length)));
}

MpiWorld::MpiWorld() {
  complete([&](MPI_Request* request) { return MPI_Comm_idup(MPI_COMM_WORLD, &comm_, request); });
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

MpiWorld::~MpiWorld() { MPI_Comm_free(&comm_); }

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

MPI_Request& Messages::to(int rank) {
  ranks_.push_back(rank);
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void Messages::finish(std::source_location where) {
  const Working waiting(Progress::of_caller());
  constexpr int yields = 200;
  const auto count = static_cast<int>(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  std::vector<int> done(requests_.size());
  for (int tests = 0, left = count; left > 0; ++tests) {
    int some = 0;  // have been completed by this test
    const int code = MPI_Testsome(count, requests_.data(), &some, done.data(), statuses.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < some; ++i) check_mpi(statuses[i].MPI_ERROR, where);
    }
    check_mpi(code, where);
    expect(some != MPI_UNDEFINED, "a request that is under way while not all are done");
    left -= some;
    if (left == 0) break;
    if (tests < yields) {
      std::this_thread::yield();
      continue;
    }
    if (tests == yields || some > 0) task_waits_for(missing());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  task_waits_for({});
  requests_.clear();
  ranks_.clear();
}

std::vector<int> Messages::missing() const {
  std::set<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL && ranks_[i] >= 0) ranks.insert(ranks_[i]);
  }
  return {ranks.begin(), ranks.end()};
}
}  // namespace zero
