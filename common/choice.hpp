// SPDX-License-Identifier: MIT
// Which device and which transport a run gets, from what was asked for and what there is.
#pragma once
#include <string>

#include "device.hpp"
#include "options.hpp"

namespace zero {

/// What one rank finds.
struct Machine {
  Gpus gpus;
  bool nccl = false;  // this build has it
  int ranks = 1;  // of the whole run
  int ranks_here = 1;  // of them on this machine
  int place_here = 0;  // this one's place among those, from 0
};

struct Choice {
  Device device = Device::cpu;
  Transport comm = Transport::mpi;
  int gpu = 0;  // this rank's
  int sharing = 1;  // ranks whose tensors lie in the same memory
  std::string why;  // one line
};

/// Throws Error (usage) when what was asked for contradicts itself, Error (resources) when the
/// machine does not have it.
Choice choose(const Options& options, const Machine& machine);

/// The options of a process alone, with the choice in them and the device in use.
Options choose_alone(Options options);

}  // namespace zero
