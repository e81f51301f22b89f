// SPDX-License-Identifier: MIT
#include "compute/cpu/cpu_kernels.hpp"
#include "compute/watchdog.hpp"

namespace zero {
namespace {
/// A disk's kernels, which only copy.
struct DiskKernels : CpuKernels {
  explicit DiskKernels(Device& disk) : disk(disk) {}
  /// Throws the disk's Error (resources), with the step and the task's name and layer in front.
  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override try {
    disk.copy(to, from, bytes);
  } catch (const Error& error) {
    const std::string of = here.task ? describe(here.task->work) : "";
    throw Error(error.code, "step " + std::to_string(here.step) + ", " + of + ": " + error.what());
  }
  Device& disk;
};
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& device, bool urgent) {
  if (device.place == Place::disk) return std::make_unique<DiskKernels>(device);
  if (device.type == DeviceType::cuda) return cuda::make_kernels(device, urgent);
  return std::make_unique<CpuKernels>(device.threads);
}
}  // namespace zero
