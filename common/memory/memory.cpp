// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "memory/tensor.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
class Cpu : public Device {
 public:
  explicit Cpu(Place place) : Device(DeviceType::cpu, place) {
    if (place == Place::device) host_ = std::make_unique<Cpu>(Place::host);
    if (place == Place::host) disk_ = make_disk();
  }
  std::byte* allocate(std::int64_t bytes, Memory) override {
    ++allocations;
    // The host's memory begins at a page, so that copies to and from a disk need no page cache.
    const std::int64_t small_alignment = place == Place::host ? disk_page : 64;
    const std::int64_t huge_page = 2 << 20;
    const std::int64_t alignment = bytes < huge_page ? small_alignment : huge_page;
    const std::int64_t rounded_up = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, rounded_up);  // takes whole multiples only
    if (!memory) return nullptr;
    // Huge pages save address translations. If the system refuses, the program is only slower.
    if (alignment == huge_page) madvise(memory, rounded_up, MADV_HUGEPAGE);
    // The system hands over pages when they are first written: here, not inside a step.
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, Memory) noexcept override { std::free(memory); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::int64_t available() const override {
    std::ifstream text("/proc/meminfo");
    std::int64_t kib = 0;  // stays 0 if the file has no such line
    for (std::string word; text >> word && word != "MemAvailable:";) continue;
    text >> kib;
    return kib * 1024;
  }
};

/// A host whose pinned memory is allocated by the GPU's driver.
class HostOfGpu : public Cpu {
 public:
  explicit HostOfGpu(Device& gpu) : Cpu(Place::host), gpu_(gpu) {}
  bool can_pin() const override { return true; }
  void bind_thread() override { gpu_.bind_thread(); }
  std::byte* allocate(std::int64_t bytes, Memory memory_type) override {
    return memory_type == Memory::ordinary ? Cpu::allocate(bytes, memory_type)
                                           : gpu_.allocate(bytes, memory_type);
  }
  void release(std::byte* memory, Memory memory_type) noexcept override {
    memory_type == Memory::ordinary ? Cpu::release(memory, memory_type)
                                    : gpu_.release(memory, memory_type);
  }

 private:
  Device& gpu_;
};
}  // namespace

void expect(bool holds, const char* what, std::source_location where) {
  if (holds) return;
  throw std::logic_error(
      fmt::format("{}: expected {} (line {})", where.function_name(), what, where.line()));
}

void flush_output() {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout);
  if (failed)
    throw_error(ExitCode::resources, "standard output cannot be written: {}", std::strerror(errno));
}

Device::~Device() = default;

std::unique_ptr<Device> make_cpu() { return std::make_unique<Cpu>(Place::device); }
std::unique_ptr<Device> make_host_of(Device& gpu) { return std::make_unique<HostOfGpu>(gpu); }

OnHost::OnHost(ConstView view) : view_(view) {
  if (view.addressable()) return;
  // One page more: the copy can begin at a page, so that reading a disk needs no page cache.
  copy_.resize(view.bytes() + disk_page);
  const auto in_page = reinterpret_cast<std::uintptr_t>(copy_.data()) % disk_page;
  std::byte* const page = copy_.data() + (disk_page - in_page);
  view.device->copy(page, view.data, view.bytes());
  view_.data = page;
  view_.device = nullptr;  // host memory in no ledger: the CPU may read it
}

Buffer::Buffer(Device& device, Kind kind, std::int64_t bytes, bool resident, Memory memory,
               std::int64_t gaps)
    : memory_(nullptr, {&device, kind, bytes, resident, memory, true}) {
  if (bytes == 0) return;
  memory_.reset(device.allocate(bytes + gaps, memory));
  if (!memory_)
    throw_error(ExitCode::resources, "the {} gave no {} bytes for {}: use {}",
                device.type == DeviceType::cuda ? "GPU" : "system", bytes, name_of(kind),
                kind == Kind::data ? "a smaller --data or --batch"
                : device.can_pin() && memory == Memory::pinned
                    ? "--pageable, or narrower layers"
                    : "fewer or narrower layers, or more ranks");
  device.reserve(kind, bytes, resident);
}

Buffer::Buffer(Device& host, std::int64_t bytes)
    : memory_(host.allocate(bytes, Memory::pinned),
              {&host, Kind::communication, bytes, false, Memory::pinned, false}) {
  if (!memory_)
    throw_error(ExitCode::resources,
                "the system gave no {} bytes of host memory for a GPU's copies", bytes);
}

void Buffer::Release::operator()(std::byte* data) const noexcept {
  if (booked) device->reserve(kind, -bytes, resident);
  device->release(data, memory);
}

Borrowed Scratch::borrow(View part) {
  if (borrowers_ == 0) {
    lent_ = part;  // all bytes are booked, under the view of the first borrower
    buffer_.device().book(buffer_.kind(), buffer_.bytes(), &lent_);
  }
  ++borrowers_;
  Borrowed borrowed;
  borrowed.scratch_.reset(this);
  borrowed.view_ = part;
  return borrowed;
}

void Borrowed::GiveBack::operator()(Scratch* scratch) const noexcept {
  const Buffer& memory = scratch->buffer_;
  if (--scratch->borrowers_ > 0) return;
  memory.device().book(memory.kind(), -memory.bytes(), &scratch->lent_);
}

View Borrowed::view() const {
  expect(scratch_ != nullptr, "memory that has not been given back");
  return view_;
}
}  // namespace zero
