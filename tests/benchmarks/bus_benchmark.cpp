// SPDX-License-Identifier: MIT
// The bus between a GPU and its host: page-locked against pageable memory in both directions, and
// whether copies pass beside matrix products, as chapter 07 wants them to.
//
// Bars. From 1 MiB on page-locked memory is at least as fast: what is pageable goes through
// page-locked memory of the driver's besides. And beside products that take half as long again,
// copies of page-locked memory add at most 0.15 of their own time: a copy engine takes no
// multiprocessor, only a hundredth of the memory's bandwidth, and the rest is how well two times
// can be told apart. In line with the products they would add all of it.
#include <array>

#include "compute/bus.hpp"
#include "report/prediction.hpp"
#include "run/failure.hpp"
#include "tests/benchmarks/benchmark.hpp"

namespace {
using namespace zero;

constexpr int rounds = 5;
constexpr int pieces = 16;  // copies beside products
constexpr std::int64_t judged_from = 1 << 20;  // bytes; below, starting a copy is most of it
constexpr double most_added = 0.15;

struct Route {
  Direction direction;
  bool pageable;
};
constexpr Route routes[] = {{Direction::down, false},
                            {Direction::down, true},
                            {Direction::up, false},
                            {Direction::up, true}};

class Bench {
 public:
  /// largest: bytes of a copy; width: of the products, and their batch.
  Bench(std::int64_t largest, std::int64_t width)
      : largest_(largest),
        width_(width),
        device_(Device::cuda, Kind::communication, largest, true),
        page_locked_(Device::cuda, Kind::communication, largest, true, Memory::staging),
        pageable_(Device::host, Kind::communication, largest, true),
        matrices_(Device::cuda, Kind::data, Dtype::bf16, 3 * width * width) {
    compute_.kernels().reserve_products(product_room_bytes);
  }

  /// GB/s by route, of copies of that size.
  std::array<double, 4> speeds(std::int64_t bytes) {
    const int copies = static_cast<int>(std::clamp<std::int64_t>(largest_ / bytes, 1, 64));
    std::array<double, 4> speeds{};
    for (int i = 0; i < 4; ++i) {
      speeds[i] = static_cast<double>(copies * bytes) / time(0, copies, bytes, routes[i]) / 1e6;
    }
    return speeds;
  }

  struct Beside {
    double added() const { return std::max(0.0, both - products) / copies; }
    double products, copies, both;  // milliseconds
  };
  /// Copies beside products that take half as long again.
  Beside beside(Route route) {
    const std::int64_t bytes = largest_ / pieces;
    const double copies = time(0, pieces, bytes, route);
    const int some = 8;
    const double one = time(some, 0, 0, route) / some;
    const int products = static_cast<int>(1.5 * copies / one) + 1;
    return {time(products, 0, 0, route), copies, time(products, pieces, bytes, route)};
  }

 private:
  /// The median time in which the two streams do so many products and so many copies.
  double time(int products, int copies, std::int64_t bytes, Route route) {
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {
      const double ms = milliseconds([&] {
        compute_.run([=, this] { multiply(products); });
        copies_.run([=, this] { copy(copies, bytes, route); });
        compute_.synchronise();
        copies_.synchronise();
      });
      if (round > 0) times.push_back(ms);  // the first one warms up
    }
    return median(times);
  }

  void multiply(int times) {
    const std::int64_t n = width_;
    const View x = matrices_.view();
    for (int i = 0; i < times; ++i) {
      compute_.kernels().linear_forward({n, n, n, false}, x.part(0, n * n), x.part(n * n, n * n),
                                        x.part(2 * n * n, n * n), false);
    }
  }

  void copy(int times, std::int64_t bytes, Route route) {
    std::byte* const host = (route.pageable ? pageable_ : page_locked_).data();
    const bool down = route.direction == Direction::down;
    for (int i = 0; i < times; ++i) {
      copies_.kernels().copy_bytes(down ? host : device_.data(), down ? device_.data() : host,
                                   bytes);
    }
  }

  const std::int64_t largest_, width_;
  const Buffer device_, page_locked_, pageable_;
  const Tensor matrices_;
  Stream compute_{"compute", Device::cuda, Stream::Mode::worker};
  Stream copies_{"copies", Device::cuda, Stream::Mode::worker};
};

bool holds(bool condition, const std::string& what) {
  fmt::print("{}: {}\n", condition ? "yes" : "NO", what);
  return condition;
}

/// Prints a row a size; the least of page-locked over pageable, of the sizes that are judged.
double print_speeds(Bench& bench, std::int64_t largest) {
  fmt::print(
      "GB/s                  down, to the host            up, to the device\n"
      "      bytes  page-locked pageable  ratio  page-locked pageable  ratio\n");
  double least = 1e9;
  for (std::int64_t bytes = 64 << 10; bytes <= largest; bytes *= 4) {
    const auto [down, pageable_down, up, pageable_up] = bench.speeds(bytes);
    fmt::print("{:>11}{:>13.2f}{:>9.2f}{:>7.2f}{:>13.2f}{:>9.2f}{:>7.2f}\n", grouped(bytes), down,
               pageable_down, down / pageable_down, up, pageable_up, up / pageable_up);
    if (bytes >= judged_from) least = std::min({least, down / pageable_down, up / pageable_up});
  }
  return least;
}

/// The most that copies of page-locked memory add.
double print_beside(Bench& bench, std::int64_t largest) {
  fmt::print(
      "\nms, {} copies of {} bytes\n"
      "beside products      products   copies     both  added, of the copies' time\n",
      pieces, grouped(largest / pieces));
  double most = 0;
  for (const Route route : routes) {
    const Bench::Beside times = bench.beside(route);
    fmt::print("{:<20}{:>9.2f}{:>9.2f}{:>9.2f}{:>7.2f}\n",
               fmt::format("{}, {}", name_of(route.direction),
                           route.pageable ? "pageable" : "page-locked"),
               times.products, times.copies, times.both, times.added());
    if (!route.pageable) most = std::max(most, times.added());
  }
  fmt::print("\n");
  return most;
}
}  // namespace

/// With a word, any: small sizes for a simulated GPU, of which overlap alone is judged.
int main(int argc, char**) {
  fail_fast("bus_benchmark", [](int code) { std::_Exit(code); });
  const bool small = argc > 1;
  const std::int64_t largest = small ? 256 << 10 : 256 << 20;
  if (const Gpus gpus = visible_gpus(); gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  Bench bench(largest, small ? 16 : 4096);
  fmt::print("{}: medians of {}\n\n", memory_of(Device::cuda).words(), rounds);
  const double least = print_speeds(bench, largest), most = print_beside(bench, largest);
  bool good = holds(most <= most_added,
                    fmt::format("page-locked copies beside products add {:.2f} of their time, at "
                                "most {:.2f}",
                                most, most_added));
  if (!small) {
    good &= holds(least >= 1, fmt::format("page-locked over pageable from {} bytes on: {:.2f}, at "
                                          "least 1",
                                          grouped(judged_from), least));
  }
  return good ? 0 : 1;
}
