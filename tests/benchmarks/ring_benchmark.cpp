// SPDX-License-Identifier: MIT
// Compares a reduce-scatter and an all-gather by a ring with the direct exchange of common/comm. By
// the ring a rank sends as much, in N - 1 times as many rounds; part p is added from rank p + 1 on.
// The program checks both counts, that the ring has the bits of this order, and that with 3 ranks
// or more each part but the last has some bits that are not the direct exchange's.
#include <mpi.h>

#include <numeric>
#include <random>

#include "run/session.hpp"
#include "tests/benchmarks/benchmark.hpp"

namespace {
using namespace zero;

struct Ring {  // sent, rounds: this rank's elements and messages so far
  const int rank, size;
  std::int64_t sent = 0, rounds = 0;
  std::vector<float> room{};

  void all_reduce_mean(std::span<float> full) {
    room.resize(full.size() / size);
    for (int step = 1; step < size; ++step) {
      pass(part(full, rank - step), room);
      const auto mine = part(full, rank - step - 1);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = room[i] + mine[i];
    }
    for (float& sum : part(full, rank)) sum /= static_cast<float>(size);
    for (int step = 0; step < size - 1; ++step) {
      pass(part(full, rank - step), part(full, rank - step - 1));
    }
  }

  std::span<float> part(std::span<float> full, int p) const {
    return full.subspan((p + size) % size * (full.size() / size), full.size() / size);
  }

  /// Sends to the next rank, receives from the one before; yields its core while it waits.
  void pass(std::span<const float> out, std::span<float> in) {
    const int count = static_cast<int>(out.size());
    MPI_Request both[2];
    MPI_Irecv(in.data(), count, MPI_FLOAT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, both);
    MPI_Isend(out.data(), count, MPI_FLOAT, (rank + 1) % size, 0, MPI_COMM_WORLD, both + 1);
    for (int done = 0, tests = 1; !done; ++tests) {
      MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE);
      if (!done && tests % 4 == 0) std::this_thread::yield();
    }
    sent += count;
    ++rounds;
  }
};

std::vector<float> gradient_of(int rank, std::int64_t size) {
  std::mt19937 generator(rank + 1);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(generator()) * 0x1p-32f - 0.5f;
  return values;
}

/// Runs both ways `times` times. Prints counts and times, or with tells_bits how many elements of
/// each part differ. Returns on rank 0 whether all is as expected, and true on the other ranks.
bool compare(Session& session, std::int64_t elements, int times, bool tells_bits) {
  const int rank = session.rank(), n = session.size();
  const auto device = make_cpu();
  Stream stream("benchmark", *device);
  Tensor tensor(*device, Kind::gradients, Dtype::fp32, elements);
  Communicator comm(rank, n, make_mpi_transport(*device), *device, Dtype::fp32, elements);
  Ring ring{rank, n};
  std::vector<float> gradient = gradient_of(rank, elements), by_ring;
  const auto direct = tensor.view().as<float>();
  std::vector<double> us[2];  // of each run: direct, by the ring
  for (int i = 0; i < times; ++i) {
    std::ranges::copy(by_ring = gradient, direct.begin());
    comm.gather(std::vector<std::uint64_t>{0});  // so that all ranks begin together
    us[0].push_back(1e3 * milliseconds([&] { comm.all_reduce_mean(stream, tensor.view()); }));
    comm.gather(std::vector<std::uint64_t>{0});
    us[1].push_back(1e3 * milliseconds([&] { ring.all_reduce_mean(by_ring); }));
  }
  for (auto& way : us) std::ranges::sort(way);  // the 10th percentile is printed
  const auto phases = comm.sent().in_phases();
  const auto sent = std::accumulate(phases.begin(), phases.end(), std::int64_t{});
  bool holds = sent == ring.sent && ring.rounds == 2 * (n - 1) * times;
  if (rank > 0) return true;
  if (!tells_bits) {
    fmt::print("{:12} {:15} {:13} {:8} {:3} {:11.0f} {:7.0f}\n", elements, sent / times,
               ring.sent / times, 2, ring.rounds / times, us[0][times / 10], us[1][times / 10]);
    return holds;
  }
  fmt::print("\npart   added direct as   round the ring as   elements with other bits\n");
  for (int p = 0; p < n; ++p) {
    const auto found = ring.part(by_ring, p), other = ring.part(direct, p);
    std::vector<float> sum(found.size());
    for (int k = 1; k <= n; ++k) {
      std::vector<float> theirs = gradient_of((p + k) % n, elements);
      std::ranges::transform(sum, ring.part(theirs, p), sum.begin(), std::plus());
    }
    for (float& value : sum) value /= static_cast<float>(n);
    const auto others = std::inner_product(found.begin(), found.end(), other.begin(), 0,
                                           std::plus(), std::not_equal_to());
    holds = holds && std::ranges::equal(sum, found) && (others > 0) == (p < n - 1 && n > 2);
    fmt::print("{:4}   {:>15}   {:>17}   {:14} of {}\n", p, fmt::format("0 ... {}", n - 1),
               fmt::format("{} ... {}", (p + 1) % n, p), others, found.size());
  }
  return holds;
}
}  // namespace

int main(int argc, char** argv) {
  Session session(argc, argv);
  const int times = argc > 1 ? std::stoi(argv[1]) : 300;
  if (session.rank() == 0) {
    fmt::print(
        "{} ranks, fp32: a reduce-scatter, then an all-gather, direct and by a ring\n"
        "    elements   sent: direct       by ring   rounds: both   us: direct    ring\n",
        session.size());
  }
  const auto padded = [&](int kib) { return 256 * kib / session.size() * session.size(); };
  bool holds = true;
  for (const int kib : {1, 64, 1024, 16384}) holds &= compare(session, padded(kib), times, false);
  return compare(session, padded(64), 1, true) && holds ? 0 : 1;
}
