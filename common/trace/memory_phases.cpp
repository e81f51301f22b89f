// SPDX-License-Identifier: MIT
#include "trace/memory_phases.hpp"

#include <numeric>

namespace zero {
std::vector<MemoryPhase> memory_phases(std::span<const Booked> booked, int steps) {
  std::vector<MemoryPhase> rows{{0, Phase::setup}};
  for (int step = 1; step <= std::min(steps, 2); ++step) {
    for (int p = 1; p < phase_count; ++p) rows.push_back({step, static_cast<Phase>(p)});
  }
  MemoryPhase before{};
  for (MemoryPhase& row : rows) {
    row.bytes = before.bytes;
    std::int64_t in_use = 0;  // until a booking changed it
    for (const Booked& now : booked) {
      const std::int64_t after = std::reduce(now.bytes.begin(), now.bytes.end());
      if (now.step == row.step && now.phase == row.phase) {
        row.bytes = now.bytes;
        row.peak = std::max({row.peak, in_use, after});
      }
      in_use = after;
    }
    row.in_use = std::reduce(row.bytes.begin(), row.bytes.end());
    row.change = row.in_use - before.in_use;
    row.peak = std::max(row.peak, row.in_use);
    before = row;
  }
  return rows;
}

Footprint footprint(Device device) {
  const ProcessBytes process = process_bytes();
  const std::int64_t tensors = ledger().reserved();
  if (device == Device::cuda) {
    const std::int64_t in_use = gpu_memory().total() - gpu_memory().available();
    return {process.peak, in_use, tensors, 0, in_use - tensors};
  }
  const std::int64_t all = tensors + ledger(Place::host).reserved();
  const std::int64_t other = process.anonymous - all - rounding_so_far;
  return {process.peak, process.peak, all, rounding_so_far, other, process.files, process.shared};
}
}  // namespace zero
