// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "memory/tensor.hpp"
#include "memory/throw_if.hpp"

namespace zero {
namespace {
/// The kernel's figure behind `label`, or the first of the file; 0 where there is none.
std::int64_t kernel_figure(const std::filesystem::path& file, const std::string& label = "") {
  std::ifstream text(file);
  std::int64_t figure = 0;
  for (std::string word; !label.empty() && word != label && text >> word;) continue;
  text >> figure;
  return figure;
}

/// Bytes that the limits of this process's control groups (version 2 "0::/a/b", version 1
/// "4:memory:/a/b") and of their parents leave; files in the kernel's cache count as free.
std::int64_t left_by_control_groups() {
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool second = line.starts_with("0::");
    if (!second && line.find(":memory:/") == std::string::npos) continue;
    const std::filesystem::path root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* const limit = second ? "memory.max" : "memory.limit_in_bytes";
    const char* const usage = second ? "memory.current" : "memory.usage_in_bytes";
    const std::string cached = second ? "" : "total_";
    for (auto group = root / line.substr(line.find(":/") + 2);; group = group.parent_path()) {
      if (const std::int64_t most = kernel_figure(group / limit); most > 0) {
        const std::int64_t cache = kernel_figure(group / "memory.stat", cached + "inactive_file") +
                                   kernel_figure(group / "memory.stat", cached + "active_file");
        // Files that are removed meanwhile are in one figure only.
        const std::int64_t used = std::max<std::int64_t>(kernel_figure(group / usage) - cache, 0);
        left = std::min(left, most - used);
      }
      if (group == root) break;
    }
  }
  return std::max<std::int64_t>(left, 0);
}

class Cpu : public Device {
 public:
  explicit Cpu(Place place) : Device(DeviceType::cpu, place) {
    if (place == Place::device) host_ = std::make_unique<Cpu>(Place::host);
  }
  std::byte* allocate(std::int64_t bytes, Memory) override {
    ++allocations;
    constexpr std::int64_t line = 64, page = 4 << 10, huge_page = 2 << 20;
    const std::int64_t alignment = bytes < huge_page ? line : huge_page;
    const std::int64_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, whole);
    if (!memory) return nullptr;
    // Fewer addresses to translate. Where the system refuses, small pages do as well, only slower.
    if (alignment == huge_page) madvise(memory, whole, MADV_HUGEPAGE);
    // Writing it also makes the system hand it over now and not page by page inside a step.
    std::memset(memory, 0, bytes);
    auto* const start = static_cast<std::byte*>(memory);
    unsigned char last = 0;  // odd if the last page, which nothing wrote, is there
    if (whole - bytes >= page && mincore(start + whole - page, page, &last) == 0 && last % 2 != 0) {
      rounding += whole - bytes;
    }
    return start;
  }
  void release(std::byte* memory, Memory) noexcept override { std::free(memory); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::int64_t available() const override {
    return std::min(kernel_figure("/proc/meminfo", "MemAvailable:") * 1024,
                    left_by_control_groups());
  }
};

/// Page-locked memory is the GPU's to give.
class HostOfGpu : public Cpu {
 public:
  explicit HostOfGpu(Device& gpu) : Cpu(Place::host), gpu_(gpu) {}
  bool locks_pages() const override { return true; }
  void bind_thread() override { gpu_.bind_thread(); }
  std::byte* allocate(std::int64_t bytes, Memory sort) override {
    return sort == Memory::own ? Cpu::allocate(bytes, sort) : gpu_.allocate(bytes, sort);
  }
  void release(std::byte* memory, Memory sort) noexcept override {
    sort == Memory::own ? Cpu::release(memory, sort) : gpu_.release(memory, sort);
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
  throw_if(failed, ExitCode::resources, "standard output cannot be written: {}",
           std::strerror(errno));
}

Device::~Device() = default;

std::unique_ptr<Device> make_cpu() { return std::make_unique<Cpu>(Place::device); }
std::unique_ptr<Device> make_host_of(Device& gpu) { return std::make_unique<HostOfGpu>(gpu); }

View View::part(std::int64_t offset, std::int64_t count) const {
  expect(offset >= 0 && count >= 0 && offset + count <= size, "a part must lie inside its view");
  View part = *this;
  part.data += offset * bytes_of(dtype);
  part.size = count;
  part.used = std::clamp<std::int64_t>(used - offset, 0, count);
  part.start += offset;
  return part;
}

OnHost::OnHost(View view) : view_(view) {
  if (!view.on_gpu()) return;
  copy_.resize(view.bytes());
  view.device->copy(copy_.data(), view.data, view.bytes());
  view_.data = copy_.data();
  view_.device = nullptr;
}

Buffer::Buffer(Device& device, Kind kind, std::int64_t bytes, bool held, Memory memory)
    : memory_(nullptr, {&device, kind, bytes, held, memory, true}) {
  if (bytes == 0) return;
  memory_.reset(device.allocate(bytes, memory));
  throw_if(!memory_, ExitCode::resources, "the {} gave no {} bytes for {}: use {}",
           device.type == DeviceType::cuda ? "GPU" : "system", bytes, name_of(kind),
           kind == Kind::data ? "a smaller --data or --batch"
           : device.locks_pages() && memory == Memory::page_locked
               ? "--pageable, or narrower layers"
               : "fewer or narrower layers, or more ranks");
  device.reserve(kind, bytes, held);
}

Buffer::Buffer(Device& host, std::int64_t bytes)
    : memory_(host.allocate(bytes, Memory::page_locked),
              {&host, Kind::communication, bytes, false, Memory::page_locked, false}) {
  throw_if(!memory_, ExitCode::resources,
           "the system gave no {} bytes of host memory for a GPU's copies", bytes);
}

void Buffer::Release::operator()(std::byte* data) const {
  if (booked) device->reserve(kind, -bytes, held);
  device->release(data, memory);
}

Borrowed Scratch::borrow(View part) const {
  if (borrowers_++ == 0) buffer_.device().book(buffer_.kind(), buffer_.bytes());
  Borrowed borrowed;
  borrowed.scratch_.reset(this);
  borrowed.view_ = part;
  return borrowed;
}

void Borrowed::GiveBack::operator()(const Scratch* scratch) const {
  const Buffer& memory = scratch->buffer_;
  if (--scratch->borrowers_ == 0) memory.device().book(memory.kind(), -memory.bytes());
}

View Borrowed::view() const {
  expect(scratch_ != nullptr, "what has been given back lends no memory");
  return view_;
}
}  // namespace zero
