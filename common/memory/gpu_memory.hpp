// SPDX-License-Identifier: MIT
// What memory asks of CUDA. Defined in compute/cuda/ or, where the build has no CUDA, in its
// no_cuda.cpp, which has no GPU and throws.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "memory/device.hpp"

namespace zero::cuda {

Gpus gpus();
/// The process's one GPU from now on. Throws Error (resources) when it cannot be had.
void use(int number);
std::string words();

struct Memory {
  std::int64_t all, available;  // bytes
};
Memory memory();

/// Zeroed; null when there is no more.
std::byte* allocate(std::int64_t bytes);
void release(std::byte* memory) noexcept;
std::byte* allocate_host(std::int64_t bytes);
void release_host(std::byte* memory) noexcept;
void copy_now(void* to, const void* from, std::int64_t bytes);

}  // namespace zero::cuda
