// SPDX-License-Identifier: MIT
#include "compute/cpu/instructions.hpp"
#include "memory/throw_if.hpp"

namespace zero {
std::vector<const MicroKernel*> micro_kernels() {
  std::vector<const MicroKernel*> here;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) here.push_back(&avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) here.push_back(&avx2);
#elif defined(__aarch64__)
  here.push_back(&neon);
#endif
  here.push_back(&plain);
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
