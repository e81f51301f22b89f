// SPDX-License-Identifier: MIT
// Which device and which transport a run gets, from what was asked for and what there is.
#pragma once
#include "memory/device.hpp"
#include "train/options.hpp"

namespace zero {
/// What one rank finds.
struct Machine {
  Gpus gpus;
  bool nccl = false;  // this build has it
  int ranks = 1;  // of the whole run
  int ranks_here = 1;  // of them on this machine
  int gpu = 0;  // the one for this rank
  int users = 1;  // ranks for which this one's GPU is the one
  int gpus_in_use = 1;  // by all ranks of the run
};

/// The GPU of the rank that has that place, from 0, among the ranks on its machine. Takes turns; a
/// launcher that shows each rank a GPU of its own has chosen already.
inline int gpu_of(int place_here, int gpus) { return gpus > 0 ? place_here % gpus : 0; }

/// Throws Error (usage) when what was asked for contradicts itself, Error (resources) when the
/// machine does not have it.
Choice choose(const Options& options, const Machine& machine);
}  // namespace zero
