// SPDX-License-Identifier: MIT
// Does chapter 06's schedule take as long as its formula says? The window is the chapter's, the
// link is modelled, and a layer's computation is a sleep: so two cores can tell. Bar: the median
// step is 0.99 to 1.03 of the formula (notes/streams.md derives it).
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
}  // namespace

int main(int argc, char** argv) {
  Session session(argc, argv);
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
  return holds ? 0 : 1;
}
