// SPDX-License-Identifier: MIT
// How this process was started.
#pragma once
#include <span>

#include "memory/read_number.hpp"

namespace zero {
/// As the launcher (mpirun, srun) announces them; without one 1 and 0.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  const char* started = nullptr;  // by a launcher: its variable that says so
};

/// any: also looks for PyTorch's launchers. They start no MPI, and another run may have left their
/// variables.
inline Launcher launcher(bool any = false) {
  // Open MPI's first: a batch system may leave PMI's set. Its own last: it may start mpirun itself.
  constexpr const char* names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                      {"PMI_SIZE", "PMI_RANK"},
                                      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                      {"WORLD_SIZE", "LOCAL_RANK"}};  // RANK may be a pod's
  for (const auto& [size, rank] : std::span(names).first(any ? 4 : 3)) {
    const int ranks = environment_number(size).value_or(0);
    if (ranks > 0) return {ranks, environment_number(rank).value_or(0), size};
  }
  return {};
}
}  // namespace zero
