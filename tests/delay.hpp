// SPDX-License-Identifier: MIT
// Lateness on purpose: makes the schedule in which a missing wait shows.
#pragma once
#include <chrono>
#include <string>
#include <thread>

#include "compute/stream.hpp"

namespace zero::test {
/// Every task of a stream of that name starts that much later, if the stream was constructed before
/// this ends.
struct Delay {
  explicit Delay(const std::string& name,
                 std::chrono::milliseconds delay = std::chrono::milliseconds(2)) {
    Stream::observe([=](const std::string& stream, Phase, Kernels&, bool begins) {
      if (begins && stream == name) std::this_thread::sleep_for(delay);
    });
  }
  ~Delay() { Stream::observe({}); }
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;
};
}  // namespace zero::test
