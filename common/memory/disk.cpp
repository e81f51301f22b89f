// SPDX-License-Identifier: MIT
// The disk of a host: a Device whose memory is files.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "memory/tensor.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
/// allocate() makes a file without a name in `folder`, so that the system removes it whichever way
/// the process ends. It returns an address that stands for the file's first byte. Nobody can read
/// or write there: copy() moves bytes between the file and the host's memory.
class Disk : public Device {
 public:
  Disk() : Device(DeviceType::cpu, Place::disk) {}

  std::byte* allocate(std::int64_t bytes, Memory) override {
    ++allocations;
    auto file = std::make_unique<File>(folder, bytes);
    void* begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) return nullptr;
    const auto address = static_cast<std::byte*>(begin);
    files_[address] = std::move(file);
    return address;
  }
  void release(std::byte* memory, Memory) noexcept override {
    munmap(memory, files_[memory]->bytes);
    files_.erase(memory);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    auto* const in = static_cast<std::byte*>(to);
    const auto* const out = static_cast<const std::byte*>(from);
    if (const auto [file, at] = find(out); file) return move("read", pread, *file, at, in, bytes);
    const auto [file, at] = find(in);
    expect(file != nullptr, "one side of the copy is on this disk");
    move("written", pwrite, *file, at, out, bytes);
  }
  std::int64_t available() const override {
    const struct statfs system = check_folder();
    return static_cast<std::int64_t>(system.f_bavail) * system.f_frsize;
  }

 private:
  struct File {
    /// Reserves the disk's space now, so that no step finds the disk full.
    File(const std::string& folder, std::int64_t bytes)
        : bytes(bytes), cached(open_nameless(folder)) {
      if (cached < 0) throw_errno(fmt::format("--offload-dir {}, a file without a name", folder));
      const std::string self = fmt::format("/proc/self/fd/{}", cached);
      direct = open(self.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
      const int refused = posix_fallocate(cached, 0, bytes);
      if (refused == 0) return;
      close_all();
      errno = refused;
      throw_errno(fmt::format("--offload-dir {}, {} bytes", folder, bytes));
    }
    File(const File&) = delete;
    ~File() { close_all(); }
    void close_all() const { close(cached), close(direct); }
    static int open_nameless(const std::string& folder) {
      const int file = open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
      if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
      std::string name = folder + "/zero-XXXXXX";  // for file systems without O_TMPFILE
      const int named = mkostemp(name.data(), O_CLOEXEC);
      if (named >= 0) unlink(name.c_str());
      return named;
    }

    const std::int64_t bytes;
    const int cached;  // the file, read and written through the system's page cache
    int direct;  // the same file, past the page cache; -1: the file system cannot do it
  };

  /// Throws Error (resources) if there is no such folder, or it is in the machine's memory.
  struct statfs check_folder() const {
    struct statfs system {};
    if (statfs(folder.c_str(), &system) != 0) throw_errno("--offload-dir " + folder);
    if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)
      throw_error(ExitCode::resources,
                  "--offload-dir {}: it lies in the machine's memory (tmpfs): name a folder on a "
                  "disk, or keep the optimizer state with the host by --state host",
                  folder);
    return system;
  }

  /// Returns the file and the position in it for which the address stands; null: no file.
  std::pair<const File*, std::int64_t> find(const std::byte* address) const {
    const auto next = files_.upper_bound(address);
    if (next == files_.begin()) return {};
    const auto& [begin, file] = *std::prev(next);
    return {address - begin < file->bytes ? file.get() : nullptr, address - begin};
  }

  /// Calls pread or pwrite until all bytes have moved. Whole pages, at a page of both the file and
  /// the memory, bypass the page cache, which would cost another copy, and memory that no ledger
  /// counts. Other bytes go through the cache; all bytes do if the disk's pages exceed disk_page.
  void move(const char* done, auto call, const File& file, std::int64_t at, auto* memory,
            std::int64_t bytes) const {
    bool direct = file.direct >= 0;
    while (bytes > 0) {
      const auto address = reinterpret_cast<std::intptr_t>(memory);
      direct = direct && (address | at) % disk_page == 0 && bytes >= disk_page;
      const std::int64_t some = direct ? bytes / disk_page * disk_page : bytes;
      const std::int64_t moved = call(direct ? file.direct : file.cached, memory, some, at);
      if (moved < 0 && errno == EINVAL && std::exchange(direct, false)) continue;
      if (moved <= 0)
        throw_error(ExitCode::resources, "--offload-dir {}: {} bytes could not be {}: {}", folder,
                    bytes, done, moved == 0 ? "the file has become shorter" : std::strerror(errno));
      memory += moved, at += moved, bytes -= moved;
    }
  }

  std::map<const std::byte*, std::unique_ptr<File>> files_;
};
}  // namespace

std::unique_ptr<Device> make_disk() { return std::make_unique<Disk>(); }
}  // namespace zero
