// SPDX-License-Identifier: MIT
#include "memory/device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "memory/error.hpp"

namespace zero {
namespace {

/// The figure behind `label`, which the kernel gives in KiB, in bytes; 0 where it gives none.
std::int64_t kernel_figure(const char* file, const std::string& label) {
  std::ifstream lines(file);
  for (std::string word; lines >> word;) {
    std::int64_t kibibytes = 0;
    if (word == label && lines >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

class HostMemory : public DeviceMemory {
 public:
  std::byte* allocate(std::int64_t bytes) override {
    constexpr std::int64_t alignment = 64;
    const std::int64_t whole_lines = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, whole_lines);
    // Writing it also makes the system hand it over now and not page by page inside a step.
    if (memory) std::memset(memory, 0, whole_lines);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override { std::free(memory); }
  std::byte* allocate_staging(std::int64_t bytes) override { return allocate(bytes); }
  void release_staging(std::byte* memory) noexcept override { std::free(memory); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::int64_t total() override {
    return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  }
  std::int64_t available() override { return kernel_figure("/proc/meminfo", "MemAvailable:"); }
  std::string words() override { return ""; }
};
}  // namespace

DeviceMemory& memory_of(Device device) {
  static HostMemory host;
  return device == Device::cuda ? gpu_memory() : host;
}

std::int64_t process_peak_bytes() { return kernel_figure("/proc/self/status", "VmHWM:"); }

HostBuffer::HostBuffer(Device device, std::int64_t bytes)
    : device_(device), bytes_(bytes), data_(memory_of(device).allocate_staging(bytes)) {
  ++allocations_so_far;
  if (data_) return;
  throw Error(ExitCode::resources,
              fmt::format("the system gave no {} bytes of host memory for a GPU's copies", bytes));
}
}  // namespace zero
