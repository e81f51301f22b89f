// SPDX-License-Identifier: MIT
// The memory of the simulated GPU.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "cuda_runtime.h"

namespace simulated {
constexpr std::size_t page = 4096;

/// Memory between guards, so that a kernel which writes past its end is found.
class Heap {
 public:
  Heap(const char* name, std::size_t size) : available(size), name_(name) {}

  /// Null: so much is not available.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > available) return nullptr;
    void* const pages =
        mmap(nullptr, guarded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(pages) + page;
    std::fill(begin - page, begin, guard_byte);
    std::fill_n(begin, std::min(bytes, most_filled), fresh_byte);
    std::fill(begin + bytes, begin - page + guarded(bytes), guard_byte);
    live_[begin] = bytes;
    available -= bytes;
    return begin;
  }

  void release(void* memory) {
    if (!memory) return;
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(memory);
    if (found == live_.end()) simulated::die("%s memory: freed, but not live", name_);
    const std::size_t bytes = found->second;
    auto* const begin = static_cast<std::byte*>(memory);
    const auto spoilt = [](std::byte byte) { return byte != guard_byte; };
    if (std::any_of(begin - page, begin, spoilt) ||
        std::any_of(begin + bytes, begin - page + guarded(bytes), spoilt)) {
      simulated::die("%s memory: written beside %zu bytes", name_, bytes);
    }
    munmap(begin - page, guarded(bytes));  // whoever still uses it crashes
    live_.erase(found);
    available += bytes;
  }

  bool contains(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto behind = live_.upper_bound(memory);
    if (behind == live_.begin()) return false;
    const auto [begin, size] = *std::prev(behind);
    const auto offset =
        static_cast<const std::byte*>(memory) - static_cast<const std::byte*>(begin);
    return offset + bytes <= size;
  }

  std::atomic<std::size_t> available;  // bytes

 private:
  /// Whole pages, and one more at either side.
  static std::size_t guarded(std::size_t bytes) {
    return (bytes + page - 1) / page * page + 2 * page;
  }

  static constexpr auto guard_byte = std::byte{0xfd};
  static constexpr auto fresh_byte = std::byte{0xcd};
  /// What lies behind is zero: filling it would cost more than the test that wants the memory.
  static constexpr std::size_t most_filled = std::size_t{1} << 20;

  const char* const name_;
  std::mutex mutex_;  // guards what is live
  std::map<const void*, std::size_t> live_;
};
}  // namespace simulated
