// SPDX-License-Identifier: MIT
// What a run gets, from what was asked for and what a machine has.
#include "run/choice.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "memory/error.hpp"

namespace zero {

namespace {

const Gpus none{0, "no GPU: this machine has no driver for one", {}};

Options asked(std::optional<Device> device,
              std::optional<Comm> comm = std::nullopt,
              Reduce reduce = Reduce::ordered) {
  Options options;
  options.wanted_device = device;
  options.wanted_comm = comm;
  options.reduce = reduce;
  return options;
}

/// One machine with that many GPUs, on which the ranks take turns.
Machine machine(int gpus, int ranks, bool nccl = true, int place = 0) {
  Machine machine{gpus > 0 ? Gpus{gpus, "", {}} : none, nccl, ranks, ranks};
  if (gpus == 0) return machine;
  machine.gpu = gpu_of(place, gpus);
  machine.users = ranks / gpus + (place % gpus < ranks % gpus ? 1 : 0);
  machine.gpus_in_use = std::min(ranks, gpus);
  return machine;
}

/// The sentence with which it is refused, and its code.
std::string refusal(const Options& options, const Machine& machine, ExitCode code) {
  try {
    choose(options, machine);
  } catch (const Error& error) {
    CHECK(error.code == code);
    return error.what();
  }
  return "not refused";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("auto: what the machine has, and why") {
  const Choice on_laptop = choose(asked({}), machine(0, 4));
  CHECK(on_laptop.device == Device::cpu);
  CHECK(on_laptop.comm == Comm::mpi);
  CHECK(on_laptop.sharing == 4);
  CHECK(on_laptop.why == "device cpu: no GPU: this machine has no driver for one");

  const Choice own_gpus = choose(asked({}), machine(8, 8, true, 5));
  CHECK(own_gpus.device == Device::cuda);
  CHECK(own_gpus.comm == Comm::nccl);
  CHECK(own_gpus.gpu == 5);
  CHECK(own_gpus.sharing == 1);
  CHECK(own_gpus.why == "device cuda: 8 GPUs here; comm nccl: a GPU a rank");

  const Choice shared = choose(asked({}), machine(1, 4, true, 3));
  CHECK(shared.comm == Comm::mpi);
  CHECK(shared.gpu == 0);
  CHECK(shared.sharing == 4);
  CHECK(shared.why == "device cuda: 1 GPU here; comm mpi: 4 ranks share 1 GPU");

  const Choice without_nccl = choose(asked({}), machine(2, 2, false));
  CHECK(without_nccl.comm == Comm::mpi);
  CHECK(contains(without_nccl.why, "built without NCCL"));

  CHECK(choose(asked({}), machine(2, 1)).comm == Comm::mpi);  // nothing to send
  CHECK(choose(asked({}), machine(2, 3, true, 0)).sharing == 2);
  CHECK(choose(asked({}), machine(2, 3, true, 1)).sharing == 1);

  // Eight ranks, each of which sees one GPU, and another one than the others.
  Machine of_slurm = machine(1, 8);
  of_slurm.users = 1;
  of_slurm.gpus_in_use = 8;
  CHECK(choose(asked({}), of_slurm).comm == Comm::nccl);
  CHECK(choose(asked({}), of_slurm).sharing == 1);
}

TEST_CASE("what is asked for is taken") {
  CHECK(choose(asked(Device::cpu), machine(8, 8)).device == Device::cpu);
  CHECK(choose(asked(Device::cpu), machine(8, 8)).comm == Comm::mpi);
  CHECK(choose(asked(Device::cuda, Comm::mpi), machine(8, 8)).comm == Comm::mpi);
  CHECK(choose(asked(Device::cuda, Comm::nccl), machine(1, 1)).comm == Comm::nccl);
  const Choice native = choose(asked({}, {}, Reduce::native), machine(4, 4));
  CHECK(native.comm == Comm::nccl);
  CHECK(contains(native.why, "reduce native"));
}

TEST_CASE("what cannot be had is refused, with the numbers and what works") {
  const std::string no_gpu = refusal(asked(Device::cuda), machine(0, 2), ExitCode::resources);
  CHECK(contains(no_gpu, "no driver"));
  CHECK(contains(no_gpu, "--device cpu"));
  const std::string crowded =
      refusal(asked(Device::cuda, Comm::nccl), machine(1, 4), ExitCode::resources);
  CHECK(contains(crowded, "4 ranks"));
  CHECK(contains(crowded, "1 GPU"));
  CHECK(contains(crowded, "--comm mpi"));
  const std::string not_built =
      refusal(asked(Device::cuda, Comm::nccl), machine(2, 2, false), ExitCode::resources);
  CHECK(contains(not_built, "built without NCCL"));
  CHECK(contains(refusal(asked(Device::cpu, Comm::nccl), machine(2, 2), ExitCode::usage),
                 "--device cuda"));
  for (const auto& comm : {std::optional<Comm>(), std::optional(Comm::mpi)}) {
    CHECK(contains(refusal(asked({}, comm, Reduce::native), machine(1, 2), ExitCode::usage),
                   "--comm nccl"));
  }
}

}  // namespace zero
