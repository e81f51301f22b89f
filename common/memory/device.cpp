// SPDX-License-Identifier: MIT
#include "memory/device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "memory/error.hpp"
#include "memory/gpu_memory.hpp"

namespace zero {

namespace {

std::int64_t allocations = 0;

/// The figure behind `label`, which the kernel gives in KiB, in bytes; 0 where it gives none.
std::int64_t kernel_figure(const char* file, const std::string& label) {
  std::ifstream lines(file);
  for (std::string word; lines >> word;) {
    std::int64_t kibibytes = 0;
    if (word == label && lines >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

std::byte* allocate_on_host(std::int64_t bytes) {
  constexpr std::int64_t alignment = 64;
  const std::int64_t whole_lines = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole_lines);
  // Writing it also makes the system hand it over now and not page by page inside a step.
  if (memory) std::memset(memory, 0, whole_lines);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Gpus visible_gpus() {
  return cuda::gpus();
}

void use_gpu(int number) {
  cuda::use(number);
}

std::string words_of(Device device) {
  return device == Device::cuda ? cuda::words() : "";
}

std::int64_t total_bytes(Device device) {
  if (device == Device::cuda) return cuda::memory().all;
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

std::int64_t available_bytes(Device device) {
  return device == Device::cuda ? cuda::memory().available
                                : kernel_figure("/proc/meminfo", "MemAvailable:");
}

std::int64_t process_peak_bytes() {
  return kernel_figure("/proc/self/status", "VmHWM:");
}

std::int64_t allocations_so_far() {
  return allocations;
}

std::byte* allocate(Device device, std::int64_t bytes) {
  ++allocations;
  return device == Device::cuda ? cuda::allocate(bytes) : allocate_on_host(bytes);
}

void release(Device device, std::byte* memory) noexcept {
  if (device == Device::cuda) {
    cuda::release(memory);
  } else {
    std::free(memory);
  }
}

void copy_now(Device device, void* to, const void* from, std::int64_t bytes) {
  if (device == Device::cuda) {
    cuda::copy_now(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

HostBuffer::HostBuffer(Device device, std::int64_t bytes)
    : device_(device),
      bytes_(bytes),
      data_(device == Device::cuda ? cuda::allocate_host(bytes) : allocate_on_host(bytes)) {
  ++allocations;
  if (data_) return;
  throw Error(ExitCode::resources,
              fmt::format("the system gave no {} bytes of host memory for a GPU's copies", bytes));
}

HostBuffer::~HostBuffer() {
  if (device_ == Device::cuda) {
    cuda::release_host(data_);
  } else {
    std::free(data_);
  }
}

}  // namespace zero
