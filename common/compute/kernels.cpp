// SPDX-License-Identifier: MIT
#include "compute/kernels.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
namespace {
std::atomic<std::int64_t> waits = 0;
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device device, bool urgent) {
  if (device == Device::cuda) return cuda::make_kernels(urgent);
  return std::make_unique<CpuKernels>();
}

void wait_for(const Mark& mark) {
  using Clock = std::chrono::steady_clock;
  if (!mark || mark->passed()) return;
  ++waits;
  // Most steps are shorter than that; whoever waits longer leaves the core to others.
  constexpr auto yielding = std::chrono::milliseconds(20);
  for (const auto start = Clock::now(); !mark->passed();) {
    if (Clock::now() - start < yielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

std::int64_t waits_so_far() { return waits; }
}  // namespace zero
