// SPDX-License-Identifier: MIT
#include "compute/kernels.hpp"
#include "memory/error.hpp"

namespace zero {
constexpr const char* without = "this program was built without CUDA";

Gpus visible_gpus() { return {0, without, {}}; }

std::unique_ptr<Device> make_gpu(int, bool) { throw Error(ExitCode::resources, without); }

std::unique_ptr<Kernels> cuda::make_kernels(Device&, bool) {
  throw Error(ExitCode::resources, without);
}
}  // namespace zero
