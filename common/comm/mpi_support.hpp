// SPDX-License-Identifier: MIT
// Waiting in MPI without blocking in it, and checking what it returns.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <vector>

namespace zero {

/// Throws Error (communication) with MPI's own words when `code` is not MPI_SUCCESS.
void check_mpi(int code, std::source_location where = std::source_location::current());

/// Completes all requests. A call that blocks in MPI would spin on a core that the rank it waits
/// for may need (with four ranks on two cores: milliseconds instead of microseconds), so this
/// tests, yields 200 times, and then sleeps 50 microseconds between tests.
/// Throws Error (communication) when one fails, or when the calling task's stream is being stopped:
/// then none of the requests touches its memory any more.
void finish(std::span<MPI_Request> requests,
            std::source_location where = std::source_location::current());

/// All ranks, in a communicator of its owner's: its messages meet no others.
class MpiWorld {
 public:
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  MPI_Comm comm() const { return comm_; }
  /// Every rank's values, rank after rank, on every rank. All give equally many.
  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Name and version of the MPI library, as MPICH 4.0.2.
std::string mpi_library();

}  // namespace zero
