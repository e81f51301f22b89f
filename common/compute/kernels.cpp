// SPDX-License-Identifier: MIT
#include "compute/kernels.hpp"

#include <sched.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "compute/cpu/cpu_kernels.hpp"
#include "compute/cuda/cuda.hpp"
#include "compute/stream.hpp"
#include "memory/error.hpp"

namespace zero {

namespace {

std::atomic<std::int64_t> waits = 0;

std::mutex watch_mutex;  // several streams' threads may wait at a time
Watch the_watch;

}  // namespace

std::unique_ptr<Kernels> make_kernels(Device device) {
  if (device == Device::cuda) return cuda::make_kernels();
  return std::make_unique<CpuKernels>();
}

void set_watch(Watch watch) {
  const std::lock_guard lock(watch_mutex);
  the_watch = std::move(watch);
}

void wait_for(const MomentPointer& moment) {
  using Clock = std::chrono::steady_clock;
  if (!moment || moment->passed()) return;
  ++waits;
  // Most steps are shorter than that; whoever waits longer leaves the core to others.
  constexpr auto yielding = std::chrono::milliseconds(20);
  for (const auto start = Clock::now(); !moment->passed();) {
    const Clock::duration waited = Clock::now() - start;
    if (Stream::cancelled()) {
      throw Error(ExitCode::communication, "stopped waiting for the device");
    }
    {
      const std::lock_guard lock(watch_mutex);
      if (the_watch) the_watch(waited);
    }
    if (waited < yielding) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

std::int64_t waits_so_far() {
  return waits;
}

}  // namespace zero
