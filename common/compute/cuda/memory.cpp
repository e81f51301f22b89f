// SPDX-License-Identifier: MIT
// The GPUs of this machine, and the memory of the one that is used.
#include <fmt/format.h>

#include "compute/cuda/check.hpp"
#include "compute/generator.hpp"
#include "memory/device.hpp"

namespace zero {
namespace {
using cuda::check_cuda;

/// Numbers that are the same for the same GPU in every process, whatever it is called there.
std::vector<std::uint64_t> identities(int count) {
  std::vector<std::uint64_t> all;
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, number));
    std::uint64_t identity = 0;
    for (const char byte : properties.uuid.bytes) {
      identity = mix(identity ^ static_cast<unsigned char>(byte));
    }
    all.push_back(identity);
  }
  return all;
}

/// False when there is no more memory, which is no failure of the device.
bool given(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // asked for, so that nobody else finds it
    return false;
  }
  check_cuda(code);
  return true;
}

class GpuMemory : public DeviceMemory {
 public:
  std::byte* allocate(std::int64_t bytes) override {
    void* memory = nullptr;
    if (!given(cudaMalloc(&memory, bytes))) return nullptr;
    check_cuda(cudaMemset(memory, 0, bytes));
    check_cuda(cudaDeviceSynchronize());  // streams of ours do not wait for the one it ran on
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override {
    cudaDeviceSynchronize();  // a stream may still use it
    cudaFree(memory);
  }
  std::byte* allocate_staging(std::int64_t bytes) override {
    void* memory = nullptr;
    return given(cudaMallocHost(&memory, bytes)) ? static_cast<std::byte*>(memory) : nullptr;
  }
  void release_staging(std::byte* memory) noexcept override { cudaFreeHost(memory); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    // From ordinary memory the call returns when the bytes are on their way, and streams of ours do
    // not wait for them.
    check_cuda(cudaDeviceSynchronize());
  }
  std::int64_t total() override { return info().all; }
  std::int64_t available() override { return info().available; }
  std::string words() override {
    int gpu = 0;
    check_cuda(cudaGetDevice(&gpu));
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, gpu));
    return properties.name;
  }

 private:
  struct Info {
    std::int64_t all, available;
  };
  static Info info() {
    std::size_t available = 0, all = 0;
    check_cuda(cudaMemGetInfo(&available, &all));
    return {static_cast<std::int64_t>(all), static_cast<std::int64_t>(available)};
  }
};
}  // namespace

Gpus visible_gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return {count, "", identities(count)};
  cudaGetLastError();  // asking may fail; what comes later has not
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return {0, "no GPU: this machine has no driver for one", {}};
  }
  return {0, fmt::format("no GPU: {}", cudaGetErrorString(code)), {}};
}

void use_gpu(int number) { check_cuda(cudaSetDevice(number)); }

DeviceMemory& gpu_memory() {
  static GpuMemory memory;
  return memory;
}
}  // namespace zero
