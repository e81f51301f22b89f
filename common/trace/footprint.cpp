// SPDX-License-Identifier: MIT
#include "trace/footprint.hpp"

#include "memory/ledger.hpp"

namespace zero {
Footprint footprint(Device device) {
  DeviceMemory& memory = memory_of(device);
  const bool gpu = device == Device::cuda;
  return {.process = process_bytes(),
          .on_gpu = gpu ? memory.total() - memory.available() : 0,
          .reserved = ledger().reserved() + (gpu ? 0 : ledger(Place::host).reserved()),
          .rounding = gpu ? 0 : rounding_so_far};
}
}  // namespace zero
