// SPDX-License-Identifier: MIT
// The bus between a GPU and its host: page-locked against pageable memory in both directions, and
// whether copies pass beside matrix products, as chapter 07 wants them to.
//
// Bars. From 1 MiB on page-locked memory is at least as fast: what is pageable goes through
// page-locked memory of the driver's besides. And beside products that take half as long again,
// copies of page-locked memory add at most 0.15 of their own time: a copy engine takes no
// multiprocessor, only a hundredth of the memory's bandwidth, and the rest is how well two times
// can be told apart. In line with the products they would add all of it.
#include <fmt/ranges.h>

#include <array>
#include <ranges>

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
  const char* name;
  Direction direction;
  bool pageable;
};
constexpr Route routes[] = {{"down, page-locked", Direction::to_host, false},
                            {"down, pageable", Direction::to_host, true},
                            {"up, page-locked", Direction::to_device, false},
                            {"up, pageable", Direction::to_device, true}};

class Bench {
 public:
  /// largest: bytes of a copy; width: of the products, and their batch.
  Bench(Device& gpu, std::int64_t largest, std::int64_t width)
      : gpu_(gpu),
        largest_(largest),
        width_(width),
        device_(gpu_, Kind::communication, largest, true),
        page_locked_(gpu.host(), Kind::communication, largest, true, Memory::page_locked),
        pageable_(gpu.host(), Kind::communication, largest, true),
        matrices_(gpu_, Kind::data, Dtype::bf16, 3 * width * width) {
    compute_.kernels().reserve_products(product_room_bytes);
  }

  /// Prints a row of GB/s a size; the least of page-locked over pageable, of the judged sizes.
  double page_locked_over_pageable() {
    fmt::print("GB/s, bytes  {}\n", fmt::join(routes | std::views::transform(&Route::name), "  "));
    double least = 1e9;
    for (std::int64_t bytes = 64 << 10; bytes <= largest_; bytes *= 4) {
      const int copies = static_cast<int>(std::min<std::int64_t>(largest_ / bytes, 64));
      std::array<double, 4> speeds{};
      std::ranges::transform(routes, speeds.begin(), [&](Route route) {
        return static_cast<double>(copies * bytes) / time(0, copies, bytes, route) / 1e6;
      });
      fmt::print("{:>11}{:>16.2f}\n", grouped(bytes), fmt::join(speeds, ""));
      const auto [down, pageable_down, up, pageable_up] = speeds;
      if (bytes >= judged_from) least = std::min({least, down / pageable_down, up / pageable_up});
    }
    return least;
  }

  /// Prints what copies add, of their own time, to products that take half as long again; the most
  /// that those of page-locked memory add.
  double added_beside_products() {
    const std::int64_t bytes = largest_ / pieces;
    fmt::print("\nadded by {} copies of {} bytes\n", pieces, grouped(bytes));
    double most = 0;
    for (const Route route : routes) {
      const double copies = time(0, pieces, bytes, route), product = time(8, 0, 0, route) / 8;
      const int products = static_cast<int>(1.5 * copies / product) + 1;
      const double alone = time(products, 0, 0, route);
      const double added = std::max(0.0, time(products, pieces, bytes, route) - alone) / copies;
      fmt::print("{:<20}{:>7.2f}\n", route.name, added);
      if (!route.pageable) most = std::max(most, added);
    }
    return most;
  }

 private:
  /// The median time in which the two streams do so many products and so many copies.
  double time(int products, int copies, std::int64_t bytes, Route route) {
    const std::int64_t n = width_;
    const View x = matrices_.view().part(0, n * n), w = matrices_.view().part(n * n, n * n);
    const View y = matrices_.view().part(2 * n * n, n * n);
    std::byte* const host = (route.pageable ? pageable_ : page_locked_).data();
    const bool down = route.direction == Direction::to_host;
    std::byte *const from = down ? device_.data() : host, *const to = down ? host : device_.data();
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {
      const double ms = milliseconds([&] {
        compute_.run([=, this] {
          for (int i = 0; i < products; ++i) {
            compute_.kernels().linear_forward({n, n, n, false}, x, w, y, false);
          }
        });
        copies_.run([=, this] {
          for (int i = 0; i < copies; ++i) copies_.kernels().copy_bytes(to, from, bytes);
        });
        compute_.synchronise();
        copies_.synchronise();
      });
      if (round > 0) times.push_back(ms);  // the first one warms up
    }
    return median(times);
  }

  Device& gpu_;
  const std::int64_t largest_, width_;
  const Buffer device_, page_locked_, pageable_;
  const Tensor matrices_;
  Stream compute_{"compute", gpu_, Stream::Mode::asynchronous};
  Stream copies_{"copies", gpu_, Stream::Mode::asynchronous};
};
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
  const std::unique_ptr<Device> gpu = make_gpu();
  fmt::print("{}: medians of {}\n\n", gpu->words(), rounds);
  Bench bench(*gpu, largest, small ? 16 : 4096);
  const double least = bench.page_locked_over_pageable(), added = bench.added_beside_products();
  fmt::print("\npage-locked copies beside products add {:.2f} of their time, at most {:.2f}\n",
             added, most_added);
  if (small) return added > most_added;
  fmt::print("page-locked over pageable from {} bytes on: {:.2f}, at least 1\n",
             grouped(judged_from), least);
  return added > most_added || least < 1;
}
