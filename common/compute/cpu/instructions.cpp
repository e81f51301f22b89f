// SPDX-License-Identifier: MIT
#include "compute/cpu/instructions.hpp"
#include "memory/throw_if.hpp"

namespace zero {
std::vector<const MicroKernel*> micro_kernels() {
  using Built = std::pair<const MicroKernel*, bool>;  // and whether it runs on this machine
  std::vector<const MicroKernel*> here;
  for (const auto& [kernel, runs] : std::initializer_list<Built>{MICRO_KERNELS}) {
    if (runs) here.push_back(kernel);
  }
  return here;
}

const MicroKernel& micro_kernel() {
  static const MicroKernel& chosen = []() -> const MicroKernel& {
    const char* asked = std::getenv("ZERO_VECTORS");
    std::string names;
    for (const MicroKernel* kernel : micro_kernels()) {
      if (!asked || std::string(asked) == kernel->name) return *kernel;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel->name);
    }
    throw Error(ExitCode::usage, fmt::format("ZERO_VECTORS={}: this machine has {}", asked, names));
  }();
  return chosen;
}
}  // namespace zero
