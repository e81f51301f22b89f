// SPDX-License-Identifier: MIT
#include "run/choice.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "memory/error.hpp"

namespace zero {
namespace {
std::string counted(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void choose_device(const Options& options, const Machine& machine, Choice& choice) {
  if (options.device) {
    choice.device = *options.device;
    choice.why = fmt::format("device {}", name_of(choice.device));
    if (choice.device == Device::cpu || machine.gpus.count > 0) return;
    throw Error(ExitCode::resources,
                fmt::format("--device cuda: {}: use --device cpu", machine.gpus.why_none));
  }
  choice.device = machine.gpus.count > 0 ? Device::cuda : Device::cpu;
  choice.why = choice.device == Device::cuda
                   ? fmt::format("device cuda: {} here", counted(machine.gpus.count, "GPU"))
                   : fmt::format("device cpu: {}", machine.gpus.why_none);
}

/// NCCL itself refuses two ranks on one GPU unless each names a host of its own.
bool hosts_are_renamed() { return std::getenv("NCCL_HOSTID") != nullptr; }

void check_nccl(const Machine& machine, const Choice& choice) {
  if (choice.device == Device::cpu) {
    throw Error(ExitCode::usage, "--comm nccl is for GPUs: use --device cuda or --comm mpi");
  }
  if (!machine.nccl) {
    throw Error(ExitCode::resources,
                "--comm nccl: this program was built without NCCL: use --comm mpi");
  }
  if (machine.ranks > machine.gpus_in_use && !hosts_are_renamed()) {
    throw Error(ExitCode::resources,
                fmt::format("--comm nccl takes a GPU a rank: {} share {}: use --comm mpi, or fewer "
                            "ranks",
                            counted(machine.ranks, "rank"), counted(machine.gpus_in_use, "GPU")));
  }
}

void choose_comm(const Options& options, const Machine& machine, Choice& choice) {
  const bool own_gpus = machine.ranks <= machine.gpus_in_use;
  if (options.comm) {
    choice.comm = *options.comm;
    choice.why += fmt::format("; comm {}", name_of(choice.comm));
  } else if (choice.device == Device::cpu || machine.ranks == 1) {
    choice.comm = Comm::mpi;
  } else if (!machine.nccl) {
    choice.why += "; comm mpi: built without NCCL";
  } else if (own_gpus || hosts_are_renamed()) {
    choice.comm = Comm::nccl;
    choice.why += "; comm nccl: a GPU a rank";
  } else {
    choice.why += fmt::format("; comm mpi: {} share {}", counted(machine.ranks, "rank"),
                              counted(machine.gpus_in_use, "GPU"));
  }
  if (choice.comm == Comm::nccl) check_nccl(machine, choice);
  if (options.reduce == Reduce::native) choice.why += "; reduce native";
  if (options.reduce == Reduce::native && choice.comm != Comm::nccl) {
    throw Error(ExitCode::usage,
                "--reduce native is NCCL's own sum: use --comm nccl, or --reduce ordered");
  }
}
}  // namespace

int gpu_of(int place_here, int gpus) { return gpus > 0 ? place_here % gpus : 0; }

Choice choose(const Options& options, const Machine& machine) {
  Choice choice;
  choose_device(options, machine, choice);
  choose_comm(options, machine, choice);
  choice.sharing = machine.ranks_here;
  if (choice.device == Device::cuda) {
    choice.gpu = machine.gpu;
    choice.sharing = machine.users;
  }
  return choice;
}
}  // namespace zero
