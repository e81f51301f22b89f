// SPDX-License-Identifier: MIT
// The bus between a GPU and its host: page-locked against pageable memory in both directions. Bar:
// from 1 MiB on page-locked memory is at least as fast, as what is pageable goes through
// page-locked memory of the driver's besides. That copies pass beside computation is overlap.cpp's.
#include <fmt/ranges.h>

#include <array>
#include <ranges>

#include "compute/kernels.hpp"
#include "report/prediction.hpp"
#include "run/failure.hpp"
#include "tests/benchmarks/benchmark.hpp"

namespace {
using namespace zero;

constexpr int rounds = 5;
constexpr std::int64_t judged_from = 1 << 20;  // bytes; below, starting a copy is most of it
constexpr std::int64_t largest = 256 << 20;
constexpr std::array routes{"down, page-locked", "down, pageable", "up, page-locked",
                            "up, pageable"};
}  // namespace

int main() {
  fail_fast("bus_benchmark", [](int code) { std::_Exit(code); });
  if (const Gpus gpus = visible_gpus(); gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  const std::unique_ptr<Device> gpu = make_gpu();
  const auto on = make_kernels(*gpu);
  const Buffer device(*gpu, Kind::communication, largest, true);
  const Buffer page_locked(gpu->host(), Kind::communication, largest, true, Memory::page_locked);
  const Buffer pageable(gpu->host(), Kind::communication, largest, true);
  fmt::print("{}: GB/s, medians of {}\n\n      bytes  {}\n", gpu->words(), rounds,
             fmt::join(routes, "  "));
  double least = 1e9;
  for (std::int64_t bytes = 64 << 10; bytes <= largest; bytes *= 4) {
    const int copies = static_cast<int>(std::min<std::int64_t>(largest / bytes, 64));
    const auto speed = [&](const Buffer& to, const Buffer& from) {
      std::vector<double> times;
      for (int round = 0; round <= rounds; ++round) {
        const double ms = milliseconds([&] {
          for (int i = 0; i < copies; ++i) on->copy_bytes(to.data(), from.data(), bytes);
          wait_for(on->record());
        });
        if (round > 0) times.push_back(ms);  // the first one warms up
      }
      return static_cast<double>(copies * bytes) / median(times) / 1e6;
    };
    const std::array speeds{speed(page_locked, device), speed(pageable, device),
                            speed(device, page_locked), speed(device, pageable)};
    fmt::print("{:>11}{:>16.2f}\n", grouped(bytes), fmt::join(speeds, ""));
    if (bytes < judged_from) continue;
    least = std::min({least, speeds[0] / speeds[1], speeds[2] / speeds[3]});
  }
  fmt::print("\npage-locked over pageable from {} bytes on: {:.2f}, at least 1\n",
             grouped(judged_from), least);
  return least < 1;
}
