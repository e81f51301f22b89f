// SPDX-License-Identifier: MIT
// Waiting in MPI without blocking in it, and checking what it returns.
#pragma once
#include <mpi.h>

#include <string>
#include <vector>

namespace zero {
/// Throws Error (communication), with MPI's own words, when `code` is not MPI_SUCCESS; rank: whom
/// the call was for, -1: all.
void check_mpi(int code, int rank = -1);

/// Requests under way, and the ranks that they wait for.
class Messages {
 public:
  /// A place for one more request, a message to or from that rank; -1: to all. bytes: so many must
  /// come, 0: none.
  MPI_Request& with(int rank, int bytes = 0) {
    peers_.push_back({rank, bytes});
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  /// Completes all of them. A call that blocks in MPI would spin on a core that the rank it waits
  /// for may need (with four ranks on two cores: milliseconds instead of microseconds), so this
  /// tests, yields 200 times, and then sleeps 50 microseconds between tests. MPI copies bytes in
  /// tests alone, a little in each: one that took longer than 5 microseconds is followed by the
  /// next at once, else a long message that is late would sleep, or leave its core, between any two
  /// of its pieces. (To yield longer instead costs whole time slices where ranks share cores.)
  /// Throws Error (communication) when one fails or comes short.
  void finish();

 private:
  struct Peer {
    int rank, bytes;
  };
  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;  // of each request
};

/// The same for one collective of MPI's own: `start` is called with the request to begin.
template <class Start> void complete(Start start) {
  Messages messages;
  check_mpi(start(&messages.with(-1)));
  messages.finish();
}
}  // namespace zero
