// SPDX-License-Identifier: MIT
// How this process was started.
#pragma once
#include <cstdlib>
#include <string>

namespace zero {
/// Number and place of this process as its launcher (mpirun) announces them; 1 and 0 without one.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  bool started = false;  // by a launcher
};

inline Launcher launcher() {
  // Open MPI's first: a batch system may have left PMI's in the environment that it starts in.
  for (const std::string of : {"OMPI_COMM_WORLD_", "PMI_"}) {
    const char* ranks = std::getenv((of + "SIZE").c_str());
    const char* place = std::getenv((of + "RANK").c_str());
    if (!ranks || std::atoi(ranks) <= 0) continue;
    return {std::atoi(ranks), place ? std::atoi(place) : 0, true};
  }
  return {};
}
}  // namespace zero
