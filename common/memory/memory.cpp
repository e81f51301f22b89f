// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "memory/error.hpp"
#include "memory/tensor.hpp"

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
  void copy(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::int64_t total() override {
    return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  }
  std::int64_t available() override { return kernel_figure("/proc/meminfo", "MemAvailable:"); }
};
}  // namespace

void expect(bool holds, const char* what, std::source_location where) {
  if (holds) return;
  throw std::logic_error(
      fmt::format("{}: expected {} (line {})", where.function_name(), what, where.line()));
}

void flush_output() {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout);
  refuse_if(failed, ExitCode::resources, "standard output cannot be written: {}",
            std::strerror(errno));
}

DeviceMemory& memory_of(Device device) {
  static HostMemory host;
  return device == Device::cuda ? gpu_memory() : host;
}

std::int64_t process_peak_bytes() { return kernel_figure("/proc/self/status", "VmHWM:"); }

HostBuffer::HostBuffer(Device device, std::int64_t bytes)
    : memory_(memory_of(device).allocate_staging(bytes), {device}) {
  ++allocations_so_far;
  refuse_if(!memory_, ExitCode::resources,
            "the system gave no {} bytes of host memory for a GPU's copies", bytes);
}

View View::part(std::int64_t offset, std::int64_t count) const {
  expect(offset >= 0 && count >= 0 && offset + count <= size, "a part must lie inside its view");
  View part = *this;
  part.data += offset * bytes_of(dtype);
  part.size = count;
  part.used = std::clamp<std::int64_t>(used - offset, 0, count);
  part.start += offset;
  return part;
}

void View::expect_host() const {
  expect(device == Device::cpu, "only host memory can be read element by element");
}

OnHost::OnHost(View view) : view_(view) {
  if (view.device == Device::cpu) return;
  copy_.resize(view.bytes());
  memory_of(view.device).copy(copy_.data(), view.data, view.bytes());
  view_.data = copy_.data();
  view_.device = Device::cpu;
}

Buffer::Buffer(Device device, Kind kind, std::int64_t bytes, bool held)
    : memory_(nullptr, {device, kind, bytes, held}) {
  if (bytes == 0) return;
  memory_.reset(memory_of(device).allocate(bytes));
  ++allocations_so_far;
  refuse_if(!memory_, ExitCode::resources,
            "the {} gave no {} bytes for {}: use fewer or narrower layers, or more ranks",
            device == Device::cpu ? "system" : "GPU", bytes, name_of(kind));
  ledger().reserve(kind, bytes, held);
}

void Buffer::Release::operator()(std::byte* memory) const {
  ledger().reserve(kind, -bytes, held);
  std::erase_if(Tensor::held, [&](const auto& tensor) { return tensor.view.data == memory; });
  memory_of(device).release(memory);
}

Booking Scratch::book() const {
  if (bookings_++ == 0) ledger().take(buffer_.kind(), buffer_.bytes());
  Booking booking;
  booking.scratch_.reset(this);
  return booking;
}

void Booking::End::operator()(const Scratch* scratch) const {
  if (--scratch->bookings_ > 0) return;
  ledger().take(scratch->buffer_.kind(), -scratch->buffer_.bytes());
}

View Booking::view() const {
  expect(scratch_ != nullptr, "a booking that has ended has no memory");
  const Buffer& memory = scratch_->buffer_;
  return {memory.data(), scratch_->size_, scratch_->size_, scratch_->dtype_, memory.device()};
}
}  // namespace zero
