// SPDX-License-Identifier: MIT
// What the system says that a process holds, beside what the ledger knows.
#pragma once
#include "memory/device.hpp"

namespace zero {
/// At one moment, in bytes.
struct Footprint {
  ProcessBytes process;
  std::int64_t on_gpu = 0;  // in use there, whoever uses it; 0 on the CPU
  std::int64_t reserved = 0;  // the ledgers', of what lies there
  std::int64_t rounding = 0;  // what reserved memory takes beyond that, in whole huge pages
};

/// Now. On a GPU the driver is asked too.
Footprint footprint(Device device);
}  // namespace zero
