// SPDX-License-Identifier: MIT
// How this process was started.
#pragma once
#include <cstdlib>

namespace zero {
/// As the launcher (mpirun, srun) announces them; without one 1 and 0.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  bool started = false;  // by a launcher
};

inline Launcher launcher() {
  // Open MPI's first: a batch system may leave PMI's set. Its own last: it may start mpirun itself.
  constexpr const char* names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                      {"PMI_SIZE", "PMI_RANK"},
                                      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (const auto& [size, rank] : names) {
    const char* ranks = std::getenv(size);
    const char* place = std::getenv(rank);
    if (!ranks || std::atoi(ranks) <= 0) continue;
    return {std::atoi(ranks), place ? std::atoi(place) : 0, true};
  }
  return {};
}
}  // namespace zero
