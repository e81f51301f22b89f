// SPDX-License-Identifier: MIT
#include "run/choice.hpp"

#include <cstdlib>

#include "report/prediction.hpp"

namespace zero {
Choice choose(const Options& options, const Machine& machine) {
  const auto refuse_if = [](bool wrong, ExitCode code, const std::string& why) {
    if (wrong) throw Error(code, why);
  };
  const bool any_gpu = machine.gpus.count > 0, asked_native = options.reduce == Reduce::native;
  Choice choice;
  choice.device = options.device.value_or(any_gpu ? Device::cuda : Device::cpu);
  const bool cuda = choice.device == Device::cuda;
  refuse_if(cuda && !any_gpu, ExitCode::resources,
            fmt::format("--device cuda: {}: use --device cpu", machine.gpus.why_none));
  choice.gpu = cuda ? machine.gpu : 0;
  choice.sharing = cuda ? machine.users : machine.ranks_here;
  choice.why = fmt::format("device {}", name_of(choice.device));
  if (!options.device) {
    choice.why += cuda ? fmt::format(": {} here", counted(machine.gpus.count, "GPU"))
                       : fmt::format(": {}", machine.gpus.why_none);
  }

  // NCCL itself refuses two ranks on one GPU unless each names a host of its own.
  const bool crowded = machine.ranks > machine.gpus_in_use && !std::getenv("NCCL_HOSTID");
  const std::string crowd = fmt::format("{} share {}", counted(machine.ranks, "rank"),
                                        counted(machine.gpus_in_use, "GPU"));
  if (options.comm) {
    choice.comm = *options.comm;
    choice.why += fmt::format("; comm {}", name_of(choice.comm));
  } else if (cuda && machine.ranks > 1) {
    const std::string why_mpi = !machine.nccl ? "built without NCCL" : crowded ? crowd : "";
    choice.comm = why_mpi.empty() ? Comm::nccl : Comm::mpi;
    choice.why += why_mpi.empty() ? "; comm nccl: a GPU a rank" : "; comm mpi: " + why_mpi;
  }
  const bool nccl = choice.comm == Comm::nccl;
  refuse_if(nccl && !cuda, ExitCode::usage,
            "--comm nccl is for GPUs: use --device cuda or --comm mpi");
  refuse_if(nccl && !machine.nccl, ExitCode::resources,
            "--comm nccl: this program was built without NCCL: use --comm mpi");
  refuse_if(
      nccl && crowded, ExitCode::resources,
      fmt::format("--comm nccl takes a GPU a rank: {}: use --comm mpi, or fewer ranks", crowd));
  refuse_if(asked_native && !nccl, ExitCode::usage,
            "--reduce native is NCCL's own sum: use --comm nccl, or --reduce ordered");
  if (asked_native) choice.why += "; reduce native";
  return choice;
}
}  // namespace zero
