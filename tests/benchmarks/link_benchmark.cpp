// SPDX-License-Identifier: MIT
// Does chapter 06's schedule take as long as its formula says? The window is the chapter's, the
// link is modelled, and a layer's computation is a sleep: so two cores can tell. Bar: the median
// step is 0.99 to 1.03 of the formula (notes/streams.md derives it).
//
// With more than two ranks: how long a small all-reduce takes when there are more of them than
// cores. Bar: a median of 30 microseconds for 1 KiB at four ranks on two cores, on the rank with
// the largest median.
#include "06_zero3/layer_window.hpp"
#include "compute/modelled_time.hpp"
#include "run/session.hpp"
#include "tests/benchmarks/benchmark.hpp"

namespace {
using namespace zero;

/// Milliseconds of a layer: its gather, its reduce-scatter, its forward and its backward.
struct Times {
  double g, r, c, c_back;
};

/// Of a step of so many layers, in milliseconds.
double formula(int prefetch, int layers, Times t) {
  const auto [g, r, c, c_back] = t;
  if (prefetch == 0) return layers * (g + c) + layers * (g + c_back + r);
  return g + layers * std::max(c, g) + std::max(c_back, g) +
         (layers - 2) * std::max(c_back, g + r) + std::max(c_back, r) + r;
}

double measured(Session& session, int prefetch, int layers, Times t) {
  using Clock = std::chrono::steady_clock;
  const Options options{.dtype = Dtype::fp32, .prefetch = prefetch};
  const Layout layout(std::vector<std::int64_t>(layers, 1 << 16), session.rank(), session.size());
  // So that a layer's gather takes t.g; its reduce-scatter is of the same size.
  const double bits = 8.0 * layout.largest_layer() * bytes_of(options.dtype) / session.size();
  Communicator comm(session.rank(), session.size(), make_mpi_transport(Device::cpu, session.size()),
                    Device::cpu, options.dtype, layout.largest_layer(),
                    {.gbit_per_s = (session.size() - 1) * bits / (1e6 * t.g)});
  Stream compute("compute", Device::cpu, Stream::Mode::worker);
  const Tensor params(Device::cpu, Kind::parameters, options.dtype, layout.shard_size());
  const Tensor grads(Device::cpu, Kind::gradients, options.dtype, layout.shard_size());
  LayerWindow window(options, layout, comm, compute, params);
  const auto work = [&](double milliseconds) {
    compute.run([=] {
      sleep_precisely_until(Clock::now() +
                            std::chrono::round<Clock::duration>(
                                std::chrono::duration<double, std::milli>(milliseconds)));
    });
  };
  std::vector<double> steps;
  for (int step = 0; step < 12; ++step) {
    steps.push_back(milliseconds([&] {
      for (int l = 0; l < layers; ++l) {
        window.gather(l);
        work(t.c);
        window.free(l);
      }
      for (int l = layers; l-- > 0;) {
        window.gather(l);
        window.gradients(l);
        work(t.c_back);
        window.free(l);
        window.reduce_scatter_mean(l, layout.shard(grads, l), Write::over);
      }
      window.finish();
      compute.synchronise();
    }));
  }
  return median(steps);
}

bool small_is_quick(Session& session) {
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
  const std::uint64_t mine = static_cast<std::uint64_t>(median(microseconds) * 1000);
  const auto all = comm.gather({&mine, 1});
  const double largest = static_cast<double>(std::ranges::max(all)) / 1000;
  if (comm.rank == 0) {
    fmt::print("all-reduce of {} bytes on {} ranks: median {:.1f} us (bar 30)\n", elements * 4,
               comm.size, largest);
  }
  return largest < 30;
}

bool schedule_holds(Session& session) {
  constexpr int layers = 8;
  bool holds = true;
  if (session.rank() == 0) {
    fmt::print(
        "milliseconds, {} layers, gather and reduce-scatter 6 each, {} ranks\n\n"
        "prefetch  forward  backward  formula  measured  ratio (bar 0.99 to 1.03)\n",
        layers, session.size());
  }
  for (const double c_back : {10.0, 20.0}) {
    for (const int prefetch : {0, 1}) {
      const Times times{.g = 6, .r = 6, .c = 10, .c_back = c_back};
      const double expected = formula(prefetch, layers, times);
      const double ratio = measured(session, prefetch, layers, times) / expected;
      holds = holds && ratio >= 0.99 && ratio <= 1.03;
      if (session.rank() > 0) continue;
      fmt::print("{:8}{:>9}{:>10}{:>9}{:>10.1f}{:>7.3f}\n", prefetch, times.c, times.c_back,
                 expected, ratio * expected, ratio);
    }
  }
  return holds;
}
}  // namespace

int main(int argc, char** argv) {
  Session session(argc, argv);
  return (session.size() > 2 ? small_is_quick : schedule_holds)(session) ? 0 : 1;
}
