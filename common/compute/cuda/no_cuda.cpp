// SPDX-License-Identifier: MIT
#include <stdexcept>

#include "memory/error.hpp"
#include "memory/gpu_memory.hpp"

namespace zero::cuda {

namespace {

constexpr const char* without = "this program was built without CUDA";

[[noreturn]] void refuse() {
  throw Error(ExitCode::resources, without);
}

}  // namespace

Gpus gpus() {
  return {0, without, {}};
}

void use(int) {
  refuse();
}

std::string words() {
  refuse();
}

Memory memory() {
  refuse();
}

std::byte* allocate(std::int64_t) {
  refuse();
}

void release(std::byte*) noexcept {}

std::byte* allocate_host(std::int64_t) {
  refuse();
}

void release_host(std::byte*) noexcept {}

void copy_now(void*, const void*, std::int64_t) {
  refuse();
}

std::unique_ptr<Kernels> make_kernels() {
  refuse();
}

}  // namespace zero::cuda
