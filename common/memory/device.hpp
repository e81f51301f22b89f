// SPDX-License-Identifier: MIT
// Where tensors lie and arithmetic runs: the CPU, or the process's one GPU; beside it the host,
// which for a GPU is the machine that it is in and for a CPU is modelled by that CPU itself.
// Tensors, streams and sums are told which; nothing here is chosen for the process but which GPU is
// its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/names.hpp"

namespace zero {
enum class Device { cpu, cuda, host };
template <> inline constexpr std::array names_of<Device>{"cpu", "cuda", "host"};

/// In whose books memory stands: those of the device that computes, or of the host beside it.
enum class Place { device, host };
template <> inline constexpr std::array names_of<Place>{"device", "host"};
constexpr Place place_of(Device device) {
  return device == Device::host ? Place::host : Place::device;
}

/// A device's own memory, or host memory that it copies to and from beside other work: page-locked,
/// for a GPU.
enum class Memory { own, staging };

/// The memory of a device. All sizes in bytes.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Zeroed, aligned to 64 bytes or more; null when there is no more.
  virtual std::byte* allocate(std::int64_t bytes, Memory sort) = 0;
  virtual void release(std::byte* memory, Memory sort) noexcept = 0;
  /// Copies at once, where either end may be host memory. For set-up and reports: work on streams
  /// that reads or writes the memory must be done.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// What there is, and what could still be given: on the host by the system's estimate.
  virtual std::int64_t total() = 0;
  virtual std::int64_t available() = 0;
  /// The device's name in its maker's words; empty for the host.
  virtual std::string words() { return ""; }
};

/// Throws Error (resources) for a GPU where there is none.
DeviceMemory& memory_of(Device device);

/// What this process can use.
struct Gpus {
  int count = 0;
  std::string why_none;  // when count is 0
  std::vector<std::uint64_t> identities;  // of each; the same GPU has the same in every process
};

// Defined in compute/cuda/, in a build without CUDA by a file that has no GPU.
Gpus visible_gpus();
/// Device::cuda means GPU `number` for this process from now on, at first number 0; with other
/// ranks in the run, matrix products leave it room for messages. Throws Error (resources) when it
/// cannot be had.
void use_gpu(int number, bool others = false);
DeviceMemory& gpu_memory();

/// How often memory was taken from a device, staging included.
inline std::int64_t allocations_so_far = 0;

/// Bytes that the system gave with those that were asked for, as huge pages are whole.
inline std::int64_t rounding_so_far = 0;

/// The process's own physical memory in bytes, as the kernel counts it; 0 where none does.
struct ProcessBytes {
  std::int64_t peak = 0;  // of the next three together, the most so far (VmHWM)
  std::int64_t anonymous = 0;  // heap, stacks, tensors (RssAnon)
  std::int64_t files = 0;  // code, and data mapped from files (RssFile)
  std::int64_t shared = 0;  // with other processes (RssShmem)
};
ProcessBytes process_bytes();

/// Staging memory of a device, freed with the object. Move-only.
class HostBuffer {
 public:
  /// Throws Error (resources) when the system gives no `bytes` of it.
  HostBuffer(Device device, std::int64_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Release {
    Device device;
    void operator()(std::byte* memory) const { memory_of(device).release(memory, Memory::staging); }
  };
  std::unique_ptr<std::byte, Release> memory_;
};
}  // namespace zero
