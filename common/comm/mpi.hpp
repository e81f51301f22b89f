// SPDX-License-Identifier: MIT
// Waiting in MPI without blocking in it, and checking what it returns.
#pragma once
#include <mpi.h>

#include <source_location>
#include <vector>

namespace zero {
/// Throws Error (communication) with MPI's own words when `code` is not MPI_SUCCESS.
void check_mpi(int code, std::source_location where = std::source_location::current());

/// Requests under way, and the ranks that they wait for.
class Messages {
 public:
  /// A place for one more request, a message to or from that rank; -1: to all.
  MPI_Request& to(int rank) {
    ranks_.push_back(rank);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  /// Completes all of them. A call that blocks in MPI would spin on a core that the rank it waits
  /// for may need (with four ranks on two cores: milliseconds instead of microseconds), so this
  /// tests, yields 200 times, and then sleeps 50 microseconds between tests.
  /// Throws Error (communication) when one fails.
  void finish(std::source_location where = std::source_location::current());

 private:
  std::vector<MPI_Request> requests_;
  std::vector<int> ranks_;  // of each request
};

/// The same for one collective of MPI's own: `start` is called with the request to begin.
template <class Start>
void complete(Start start, std::source_location where = std::source_location::current()) {
  Messages messages;
  check_mpi(start(&messages.to(-1)), where);
  messages.finish(where);
}
}  // namespace zero
