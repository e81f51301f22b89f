// SPDX-License-Identifier: MIT
// What a run gets, from what was asked for and what a machine has.
#include "run/choice.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/checks.hpp"

namespace zero {
namespace {
Options asked(std::optional<Device> device, std::optional<Comm> comm = {},
              Reduce reduce = Reduce::ordered) {
  return {.device = device, .comm = comm, .reduce = reduce};
}

/// One machine with that many GPUs, on which the ranks take turns; this rank has that place.
Machine machine(int gpus, int ranks, bool nccl = true, int place = 0) {
  Machine machine{{gpus, gpus > 0 ? "" : "no driver", {}}, nccl, ranks, ranks};
  if (gpus == 0) return machine;
  machine.gpu = gpu_of(place, gpus);
  machine.users = ranks / gpus + (place % gpus < ranks % gpus ? 1 : 0);
  machine.gpus_in_use = std::min(ranks, gpus);
  return machine;
}

void check_chosen(const Options& options, const Machine& machine, const Choice& expected) {
  const Choice choice = choose(options, machine);
  INFO(choice.why);
  CHECK(choice.device == expected.device);
  CHECK(choice.comm == expected.comm);
  CHECK(choice.gpu == expected.gpu);
  CHECK(choice.sharing == expected.sharing);
  CHECK(choice.why == expected.why);
}

void check_refused(const Options& options, const Machine& machine, ExitCode code,
                   const std::vector<std::string>& words) {
  test::check_refused(code, words, [&] { choose(options, machine); });
}

constexpr Device cpu = Device::cpu, cuda = Device::cuda;
constexpr Comm mpi = Comm::mpi, nccl = Comm::nccl;
}  // namespace

TEST_CASE("auto: what the machine has, and why") {
  const Options open = asked({});
  check_chosen(open, machine(0, 4), {cpu, mpi, 0, 4, "device cpu: no driver"});
  check_chosen(open, machine(8, 8, true, 5),
               {cuda, nccl, 5, 1, "device cuda: 8 GPUs here; comm nccl: a GPU a rank"});
  check_chosen(open, machine(1, 4, true, 3),
               {cuda, mpi, 0, 4, "device cuda: 1 GPU here; comm mpi: 4 ranks share 1 GPU"});
  check_chosen(open, machine(2, 2, false),
               {cuda, mpi, 0, 1, "device cuda: 2 GPUs here; comm mpi: built without NCCL"});
  check_chosen(open, machine(2, 1), {cuda, mpi, 0, 1, "device cuda: 2 GPUs here"});
  for (const int place : {0, 1}) {
    check_chosen(
        open, machine(2, 3, true, place),
        {cuda, mpi, place, 2 - place, "device cuda: 2 GPUs here; comm mpi: 3 ranks share 2 GPUs"});
  }
  // Eight ranks, each of which sees one GPU, and another one than the others.
  Machine of_slurm = machine(1, 8);
  of_slurm.users = 1;
  of_slurm.gpus_in_use = 8;
  check_chosen(open, of_slurm,
               {cuda, nccl, 0, 1, "device cuda: 1 GPU here; comm nccl: a GPU a rank"});
}

TEST_CASE("what is asked for is taken") {
  check_chosen(asked(cpu), machine(8, 8), {cpu, mpi, 0, 8, "device cpu"});
  check_chosen(asked(cuda, mpi), machine(8, 8), {cuda, mpi, 0, 1, "device cuda; comm mpi"});
  check_chosen(asked(cuda, nccl), machine(1, 1), {cuda, nccl, 0, 1, "device cuda; comm nccl"});
  check_chosen(
      asked({}, {}, Reduce::native), machine(4, 4),
      {cuda, nccl, 0, 1, "device cuda: 4 GPUs here; comm nccl: a GPU a rank; reduce native"});
}

TEST_CASE("what cannot be had is refused, with the numbers and what works") {
  constexpr ExitCode usage = ExitCode::usage, resources = ExitCode::resources;
  check_refused(asked(cuda), machine(0, 2), resources, {"no driver", "--device cpu"});
  const Options with_nccl = asked(cuda, nccl);
  check_refused(with_nccl, machine(1, 4), resources, {"4 ranks", "1 GPU", "--comm mpi"});
  check_refused(with_nccl, machine(2, 2, false), resources, {"built without NCCL", "--comm mpi"});
  check_refused(asked(cpu, nccl), machine(2, 2), usage, {"--device cuda"});
  for (const auto& comm : {std::optional<Comm>(), std::optional(mpi)}) {
    check_refused(asked({}, comm, Reduce::native), machine(1, 2), usage, {"--comm nccl"});
  }
}
}  // namespace zero
