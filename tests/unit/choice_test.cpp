// SPDX-License-Identifier: MIT
// Which device and transport a run gets, from its options and from what the machine has.
#include "run/choice.hpp"

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// A machine as the rank at `place`, from 0, sees it. Its ranks take its GPUs in turn.
Machine machine(int gpus, int ranks, bool nccl = true, int place = 0) {
  Machine machine{{gpus, gpus > 0 ? "" : "no driver", {}}, nccl, ranks, ranks};
  if (gpus == 0) return machine;
  machine.gpu = gpu_of(place, gpus);
  machine.users = ranks / gpus + (place % gpus < ranks % gpus ? 1 : 0);
  machine.gpus_in_use = std::min(ranks, gpus);
  return machine;
}

using enum Comm;
constexpr DeviceType cuda = DeviceType::cuda;
constexpr ExitCode usage = ExitCode::usage, resources = ExitCode::resources;
}  // namespace

TEST_CASE("auto takes what the machine has and says why; what is asked for is taken") {
  // Under Slurm each of eight ranks may see one GPU, each its own.
  Machine of_slurm = machine(1, 8);
  of_slurm.users = 1, of_slurm.gpus_in_use = 8;
  const std::string three_share_two = "device cuda: 2 GPUs here; comm mpi: 3 ranks share 2 GPUs";
  // Expected: device, transport, number of the GPU, ranks that share the device: reasons.
  const std::tuple<Options, Machine, std::string> cases[] = {
      {{}, machine(0, 4), "cpu mpi 0 4: device cpu: no driver"},
      {{},
       machine(8, 8, true, 5),
       "cuda nccl 5 1: device cuda: 8 GPUs here; comm nccl: a GPU per rank"},
      {{},
       machine(1, 4, true, 3),
       "cuda mpi 0 4: device cuda: 1 GPU here; comm mpi: 4 ranks share 1 GPU"},
      {{},
       machine(2, 2, false),
       "cuda mpi 0 1: device cuda: 2 GPUs here; comm mpi: built without NCCL"},
      {{}, machine(2, 1), "cuda mpi 0 1: device cuda: 2 GPUs here"},
      {{}, machine(2, 3, true, 0), "cuda mpi 0 2: " + three_share_two},
      {{}, machine(2, 3, true, 1), "cuda mpi 1 1: " + three_share_two},
      {{}, of_slurm, "cuda nccl 0 1: device cuda: 1 GPU here; comm nccl: a GPU per rank"},
      {{.device = DeviceType::cpu}, machine(8, 8), "cpu mpi 0 8: device cpu"},
      {{.device = cuda, .comm = mpi}, machine(8, 8), "cuda mpi 0 1: device cuda; comm mpi"},
      {{.device = cuda, .comm = nccl}, machine(1, 1), "cuda nccl 0 1: device cuda; comm nccl"},
      {{.reduce = Reduce::native},
       machine(4, 4),
       "cuda nccl 0 1: device cuda: 4 GPUs here; comm nccl: a GPU per rank; reduce native"}};
  for (const auto& [options, machine, expected] : cases) {
    const Choice c = choose(options, machine);
    CHECK(fmt::format("{} {} {} {}: {}", name_of(c.device), name_of(c.comm), c.gpu, c.sharing,
                      c.why) == expected);
  }
}

TEST_CASE("the host's threads: a rank with a GPU has its share of the cores, else one") {
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

TEST_CASE("what the machine lacks is refused, with numbers and an option that works") {
  const Options with_nccl{.device = cuda, .comm = nccl}, pageable{.pageable = true};
  const std::tuple<Options, Machine, ExitCode, std::vector<std::string>> cases[] = {
      {{.device = cuda}, machine(0, 2), resources, {"no driver", "--device cpu"}},
      {with_nccl, machine(1, 4), resources, {"4 ranks", "1 GPU", "--comm mpi"}},
      {with_nccl, machine(2, 2, false), resources, {"built without NCCL", "--comm mpi"}},
      {{.device = DeviceType::cpu, .comm = nccl}, machine(2, 2), usage, {"--device cuda"}},
      {pageable, machine(0, 2), usage, {"--pageable", "pinned", "--device cuda"}},
      {{.reduce = Reduce::native}, machine(1, 2), usage, {"--comm nccl"}},
      {{.comm = mpi, .reduce = Reduce::native}, machine(1, 2), usage, {"--comm nccl"}}};
  for (const auto& [options, machine, code, words] : cases) {
    check_refused(code, words, [&asked = options, &on = machine] { choose(asked, on); });
  }
  CHECK(choose(pageable, machine(2, 2)).device == cuda);
}
}  // namespace zero::test
