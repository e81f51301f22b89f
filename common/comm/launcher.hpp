// SPDX-License-Identifier: MIT
// How this process was started.
#pragma once
#include <cstdlib>
#include <utility>

namespace zero {
/// Number and place of this process as its launcher (mpirun) announces them; 1 and 0 without one.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  bool started = false;  // by a launcher
};

inline Launcher launcher() {
  // Open MPI's first: a batch system may have left PMI's in the environment that it starts in.
  for (const auto& [size, rank] : {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   std::pair{"PMI_SIZE", "PMI_RANK"}}) {
    const char* ranks = std::getenv(size);
    const char* place = std::getenv(rank);
    if (ranks && std::atoi(ranks) > 0)
      return {std::atoi(ranks), place ? std::atoi(place) : 0, true};
  }
  return {};
}
}  // namespace zero
