// SPDX-License-Identifier: MIT
// Where tensors lie and arithmetic runs: the host, or the process's one GPU. Tensors, streams and
// sums are told which; nothing here is chosen for the process but which GPU is its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zero {

enum class Device { cpu, cuda };

constexpr const char* name_of(Device device) {
  constexpr const char* names[] = {"cpu", "cuda"};
  return names[static_cast<int>(device)];
}

/// What this process can use.
struct Gpus {
  int count = 0;
  std::string why_none;  // when count is 0
  std::vector<std::uint64_t> identities;  // of each; the same GPU has the same in every process
};
Gpus visible_gpus();

/// Device::cuda means GPU `number` for this process from now on, at first number 0.
/// Throws Error (resources) when it cannot be had.
void use_gpu(int number);

/// Name of the device in the maker's words, "" for the CPU.
std::string words_of(Device device);

/// Bytes that the device has, and that it could still give. On the CPU: physical memory, as the
/// kernel estimates it.
std::int64_t total_bytes(Device device);
std::int64_t available_bytes(Device device);

/// The process's own peak of physical memory in bytes, as the kernel counts it (VmHWM).
std::int64_t process_peak_bytes();

/// Zeroed memory, aligned to 64 bytes or more; null when the device has no more.
std::byte* allocate(Device device, std::int64_t bytes);
void release(Device device, std::byte* memory) noexcept;

/// How often memory was taken from a device, page-locked memory for its copies included.
std::int64_t allocations_so_far();

/// Copies at once. device: cuda when either end is a GPU's memory, cpu when neither is. For set-up
/// and reports: work on streams that reads or writes the memory must be done.
void copy_now(Device device, void* to, const void* from, std::int64_t bytes);

/// Host memory that a GPU copies to and from beside other work (page-locked there; on the CPU
/// ordinary memory). Freed with the object.
class HostBuffer {
 public:
  /// Throws Error (resources) when the system gives no `bytes` of it.
  HostBuffer(Device device, std::int64_t bytes);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Device device_;
  std::int64_t bytes_;
  std::byte* data_;
};

}  // namespace zero
