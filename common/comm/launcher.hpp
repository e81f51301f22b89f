// SPDX-License-Identifier: MIT
// How many ranks the launcher (mpirun, srun) says it has started, and which one this process is.
#pragma once
#include <span>

#include "memory/read_number.hpp"

namespace zero {
/// What the launcher says. Without a launcher: one rank, number 0.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  const char* started = nullptr;  // variable that gave `ranks`, as PMI_SIZE; null: no launcher
};

/// Reads the launcher's environment variables. any: reads those of PyTorch's launchers, too. Those
/// launchers do not start MPI, and their variables may be left over from another run.
inline Launcher launcher(bool any = false) {
  // Open MPI's first: a batch system may leave PMI's set. Slurm's third: its jobs may start mpirun.
  constexpr const char* names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                      {"PMI_SIZE", "PMI_RANK"},
                                      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                      {"WORLD_SIZE", "LOCAL_RANK"}};  // RANK may be a K8s pod's
  for (const auto& [size, rank] : std::span(names).first(any ? 4 : 3)) {
    const int ranks = environment_number(size).value_or(0);
    if (ranks > 0) return {ranks, environment_number(rank).value_or(0), size};
  }
  return {};
}
}  // namespace zero
