// SPDX-License-Identifier: MIT
// How long a small all-reduce takes when there are more ranks than cores. Bar: a median of 30
// microseconds for 1 KiB at four ranks on two cores, on the rank with the largest median.
#include "run/session.hpp"
#include "tests/benchmarks/benchmark.hpp"

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  Stream stream("benchmark", Device::cpu);
  const std::int64_t elements = 1024 / 4 / session.size() * session.size();
  const Tensor tensor(Device::cpu, Kind::gradients, Dtype::fp32, elements);
  Communicator comm(session.rank(), session.size(), make_mpi_transport(Device::cpu, session.size()),
                    Device::cpu, Dtype::fp32, elements);
  std::vector<double> microseconds;
  for (int i = 0; i < 2000; ++i) {
    const auto work = [&] { comm.all_reduce_mean(stream, tensor.view()); };
    microseconds.push_back(1000 * milliseconds(work));
  }
  std::ranges::sort(microseconds);
  const std::uint64_t mine = static_cast<std::uint64_t>(microseconds[1000] * 1000);
  const auto all = comm.gather({&mine, 1});
  const double median = static_cast<double>(std::ranges::max(all)) / 1000;
  if (comm.rank == 0) {
    fmt::print("all-reduce of {} bytes on {} ranks: median {:.1f} us (bar 30), p95 {:.1f} us\n",
               elements * 4, comm.size, median, microseconds[1900]);
  }
  return median < 30 ? 0 : 1;
}
