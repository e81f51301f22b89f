// SPDX-License-Identifier: MIT
// What a run gets, from what was asked for and what a machine has.
#include "run/choice.hpp"

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// One machine with that many GPUs, on which the ranks take turns; this rank has that place.
Machine machine(int gpus, int ranks, bool nccl = true, int place = 0) {
  Machine machine{{gpus, gpus > 0 ? "" : "no driver", {}}, nccl, ranks, ranks};
  if (gpus == 0) return machine;
  machine.gpu = gpu_of(place, gpus);
  machine.users = ranks / gpus + (place % gpus < ranks % gpus ? 1 : 0);
  machine.gpus_in_use = std::min(ranks, gpus);
  return machine;
}

/// expected: "device comm gpu sharing: why".
void check_chosen(const Options& options, const Machine& machine, const std::string& expected) {
  const Choice c = choose(options, machine);
  CHECK(fmt::format("{} {} {} {}: {}", name_of(c.device), name_of(c.comm), c.gpu, c.sharing,
                    c.why) == expected);
}

void check_no_choice(const Options& options, const Machine& machine, ExitCode code,
                     const std::vector<std::string>& words) {
  check_refused(code, words, [&] { choose(options, machine); });
}

using enum Comm;
constexpr DeviceType cuda = DeviceType::cuda;
constexpr ExitCode usage = ExitCode::usage, resources = ExitCode::resources;
}  // namespace

TEST_CASE("auto: what the machine has, and why") {
  check_chosen({}, machine(0, 4), "cpu mpi 0 4: device cpu: no driver");
  check_chosen({}, machine(8, 8, true, 5),
               "cuda nccl 5 1: device cuda: 8 GPUs here; comm nccl: a GPU a rank");
  check_chosen({}, machine(1, 4, true, 3),
               "cuda mpi 0 4: device cuda: 1 GPU here; comm mpi: 4 ranks share 1 GPU");
  check_chosen({}, machine(2, 2, false),
               "cuda mpi 0 1: device cuda: 2 GPUs here; comm mpi: built without NCCL");
  check_chosen({}, machine(2, 1), "cuda mpi 0 1: device cuda: 2 GPUs here");
  for (const int place : {0, 1}) {
    check_chosen({}, machine(2, 3, true, place),
                 fmt::format("cuda mpi {} {}: ", place, 2 - place) +
                     "device cuda: 2 GPUs here; comm mpi: 3 ranks share 2 GPUs");
  }
  // Eight ranks, each of which sees one GPU, and another one than the others.
  Machine of_slurm = machine(1, 8);
  of_slurm.users = 1, of_slurm.gpus_in_use = 8;
  check_chosen({}, of_slurm, "cuda nccl 0 1: device cuda: 1 GPU here; comm nccl: a GPU a rank");
}

TEST_CASE("the host's threads: a GPU's rank has its share of the cores, a CPU's one") {
  const auto threads = [](Machine machine, int cores) {
    machine.cores_here = cores;
    return choose({}, machine).host_threads;
  };
  CHECK(threads(machine(8, 8), 64) == 8);
  CHECK(threads(machine(1, 3), 16) == 5);
  CHECK(threads(machine(1, 3), 2) == 1);
  CHECK(threads(machine(0, 3), 16) == 1);
  CHECK(choose({}, {.gpus = {}, .ranks_here = 3, .cores_here = 16}).cores == 5);
}

TEST_CASE("what is asked for is taken") {
  check_chosen({.device = DeviceType::cpu}, machine(8, 8), "cpu mpi 0 8: device cpu");
  check_chosen({.device = cuda, .comm = mpi}, machine(8, 8), "cuda mpi 0 1: device cuda; comm mpi");
  check_chosen({.device = cuda, .comm = nccl}, machine(1, 1),
               "cuda nccl 0 1: device cuda; comm nccl");
  check_chosen({.reduce = Reduce::native}, machine(4, 4),
               "cuda nccl 0 1: device cuda: 4 GPUs here; comm nccl: a GPU a rank; reduce native");
}

TEST_CASE("what cannot be had is refused, with the numbers and what works") {
  check_no_choice({.device = cuda}, machine(0, 2), resources, {"no driver", "--device cpu"});
  const Options with_nccl{.device = cuda, .comm = nccl};
  check_no_choice(with_nccl, machine(1, 4), resources, {"4 ranks", "1 GPU", "--comm mpi"});
  check_no_choice(with_nccl, machine(2, 2, false), resources, {"built without NCCL", "--comm mpi"});
  const Options nccl_without_gpu{.device = DeviceType::cpu, .comm = nccl};
  check_no_choice(nccl_without_gpu, machine(2, 2), usage, {"--device cuda"});
  const Options pageable{.pageable = true};
  check_no_choice(pageable, machine(0, 2), usage, {"--pageable", "page-locked", "--device cuda"});
  CHECK(choose(pageable, machine(2, 2)).device == cuda);
  for (const std::optional<Comm> comm : {std::optional<Comm>(), {mpi}}) {
    check_no_choice({.comm = comm, .reduce = Reduce::native}, machine(1, 2), usage,
                    {"--comm nccl"});
  }
}
}  // namespace zero::test
