// SPDX-License-Identifier: MIT
// Chooses the device and the transport of a run, from its options and from what the machine has.
#pragma once
#include <sched.h>

#include "compute/cpu/matmul.hpp"
#include "memory/throw_error.hpp"
#include "report/prediction.hpp"

namespace zero {
struct Machine {
  Gpus gpus;
  bool nccl = false;  // whether this program was built with NCCL
  int ranks = 1;  // of the whole run
  int ranks_here = 1;  // ranks of the run on this machine
  int cores_here = 1;  // cores of this machine on which these ranks may run
  int gpu = 0;  // number of this rank's GPU
  int users = 1;  // ranks that use this GPU
  int gpus_in_use = 1;  // GPUs that all ranks of the run use together
};

inline cpu_set_t own_cores() {
  cpu_set_t cores{};
  sched_getaffinity(0, sizeof(cores), &cores);
  return cores;
}

/// Returns the number of a rank's GPU: the machine's ranks, by place_here, take its GPUs in turn.
inline int gpu_of(int place_here, int gpus) { return gpus > 0 ? place_here % gpus : 0; }

/// Throws Error (usage) if options contradict each other, (resources) if they ask for too much.
inline Choice choose(const Options& options, const Machine& machine) {
  micro_kernel();  // throws if ZERO_VECTORS names instructions that this machine lacks
  const bool any_gpu = machine.gpus.count > 0, asked_native = options.reduce == Reduce::native;
  Choice choice;
  choice.device = options.device.value_or(any_gpu ? DeviceType::cuda : DeviceType::cpu);
  const bool cuda = choice.device == DeviceType::cuda;
  if (cuda && !any_gpu)
    throw_error(ExitCode::resources, "--device cuda: {}: use --device cpu", machine.gpus.why_none);
  if (options.pageable && !cuda)
    throw_error(ExitCode::usage,
                "--pageable is about copies to a GPU, for which memory is pinned, and the "
                "device is the CPU: leave it out, or use --device cuda");
  choice.gpu = cuda ? machine.gpu : 0;
  choice.sharing = cuda ? machine.users : machine.ranks_here;
  choice.sharing_host = machine.ranks_here;
  choice.cores = std::max(1, machine.cores_here / machine.ranks_here);
  // On the CPU a rank's cores are the device, so Adam has no other cores to itself.
  choice.host_threads = cuda ? choice.cores : 1;
  const std::string found =
      cuda ? counted(machine.gpus.count, "GPU") + " here" : machine.gpus.why_none;
  choice.why =
      fmt::format("device {}{}", name_of(choice.device), options.device ? "" : ": " + found);

  // NCCL refuses two ranks on one GPU, unless each says that it is on another host.
  const bool crowded = machine.ranks > machine.gpus_in_use && !std::getenv("NCCL_HOSTID");
  const std::string crowd = fmt::format("{} share {}", counted(machine.ranks, "rank"),
                                        counted(machine.gpus_in_use, "GPU"));
  if (options.comm) {
    choice.comm = *options.comm;
    choice.why += fmt::format("; comm {}", name_of(choice.comm));
  } else if (cuda && machine.ranks > 1) {
    const std::string why_mpi = !machine.nccl ? "built without NCCL" : crowded ? crowd : "";
    choice.comm = why_mpi.empty() ? Comm::nccl : Comm::mpi;
    choice.why += why_mpi.empty() ? "; comm nccl: a GPU per rank" : "; comm mpi: " + why_mpi;
  }
  const bool nccl = choice.comm == Comm::nccl;
  if (nccl && !cuda)
    throw_error(ExitCode::usage, "--comm nccl is for GPUs: use --device cuda or --comm mpi");
  if (nccl && !machine.nccl)
    throw_error(ExitCode::resources,
                "--comm nccl: this program was built without NCCL: use --comm mpi");
  if (nccl && crowded)
    throw_error(ExitCode::resources,
                "--comm nccl takes a GPU per rank: {}: use --comm mpi, or fewer ranks", crowd);
  if (asked_native && !nccl)
    throw_error(ExitCode::usage,
                "--reduce native is NCCL's own sum: use --comm nccl, or --reduce ordered");
  if (asked_native) choice.why += "; reduce native";
  return choice;
}

/// Opens the device. others: see make_gpu(). Throws Error (resources) if the device cannot be had.
inline std::unique_ptr<Device> make_device(const Choice& choice, bool others) {
  auto device = choice.device == DeviceType::cuda ? make_gpu(choice.gpu, others) : make_cpu();
  device->host().threads = choice.host_threads;
  return device;
}
}  // namespace zero
