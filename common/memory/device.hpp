// SPDX-License-Identifier: MIT
// Where tensors lie and arithmetic runs: the CPU or the process's one GPU, and the host beside it.
// A GPU's host is the machine that it is in; a CPU models its host itself.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/ledger.hpp"

namespace zero {
enum class DeviceType { cpu, cuda };
template <> inline constexpr std::array names_of<DeviceType>{"cpu", "cuda"};

/// In whose ledger memory stands: those of the device that computes, of the host beside it, or of
/// the host's disk.
enum class Place { device, host, disk };
template <> inline constexpr std::array names_of<Place>{"device", "host", "disk"};

/// Ordinary memory, or, for a GPU, page-locked host memory, which is copied beside other work. For
/// a CPU the two are the same.
enum class Memory { own, page_locked };

/// Of a copy between the host and its device, or its disk.
enum class Direction { to_host, from_host };
template <> inline constexpr std::array names_of<Direction>{"to_host", "from_host"};
constexpr Direction direction_to(Place place) {
  return place == Place::host ? Direction::to_host : Direction::from_host;
}
/// What such a copy is called in traces and logs, by the place at the other end of the bus.
inline constexpr By<Place, By<Direction, const char*>> copy_names{
    By<Direction, const char*>{"to_host", "to_device"}, By<Direction, const char*>{},
    By<Direction, const char*>{"read", "write"}};

struct Bus {
  double gb_per_s = 0;  // modelled: no copy is faster, 10^9 bytes; 0: each as fast as it is
  /// Copied so far, by direction. Read them when the streams are idle.
  By<Direction, std::atomic<std::int64_t>> bytes{};
};

class Device;
class Holding;
struct View;
class Watcher;  // of a stream: compute/work.hpp

/// Looks on at a device, on the thread that runs the trainer.
class Observer {
 public:
  virtual ~Observer() = default;
  /// For a new stream of that name; null: nobody looks at it. It must outlive the stream.
  virtual Watcher* watcher(const char* stream) = 0;
  /// So many bytes of that kind more are in use on that device, or less; view: what they are for.
  virtual void booked(const Device& on, Kind kind, std::int64_t bytes, const View* view) = 0;
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;

  const DeviceType type;
  const Place place;
  /// The host beside it; a host is its own.
  Device& host() { return host_ ? *host_ : *this; }
  /// Of a device that computes: itself, its host, or its host's disk.
  Device& at(Place there) {
    return there == Place::device ? *this : there == Place::host ? host() : *host().disk_;
  }
  /// True where memory can be page-locked for a GPU.
  virtual bool locks_pages() const { return false; }
  /// Once on each thread that works for it.
  virtual void bind_thread() {}

  Bus bus;  // between it and its host
  std::string folder = "/var/tmp";  // of a disk: where its files are
  int threads = 1;  // of a CPU: threads that share Adam's work on a stream made from now on
  std::function<void()> check_peers;  // polled while the host waits; throws if a peer is gone
  int fp64_costs = 1;  // how many times as long as in fp32 an operation takes in fp64
  std::int64_t allocations = 0;  // calls of allocate() so far; page-locked memory counts on the GPU
  std::atomic<std::int64_t> waits = 0;  // how often the host has waited for the device's queue

  /// Zeroed, aligned to 64 bytes or more; null when there is no more.
  virtual std::byte* allocate(std::int64_t bytes, Memory sort) = 0;
  virtual void release(std::byte* memory, Memory sort) noexcept = 0;
  /// Copies at once; either end may be host memory. No stream may still use the memory.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// Bytes that could still be given, on the host by the system's estimate.
  virtual std::int64_t available() const = 0;
  /// The device's name in its maker's words; empty for a CPU.
  virtual std::string words() const { return ""; }

  const Ledger& ledger() const { return ledger_; }
  /// Ledger's functions of these names, and their callbacks.
  void reserve(Kind kind, std::int64_t bytes, bool held) {
    ledger_.reserve(kind, bytes, held);
    if (held && observer_) observer_->booked(*this, kind, bytes, nullptr);
  }
  void book(Kind kind, std::int64_t bytes, const View* view) {
    ledger_.book(kind, bytes);
    if (observer_) observer_->booked(*this, kind, bytes, view);
  }
  void restart_peaks() { ledger_.restart_peaks(); }

  /// From now on `by` receives the callbacks of this device, its host and its disk; null: nobody.
  void observe(Observer* by) {
    for (const Place there : every<Place>) at(there).observer_ = by;
  }
  Observer* observer() const { return observer_; }

  /// The tensors that a trainer holds here, in the order of their construction.
  const std::vector<const Holding*>& holdings() const { return holdings_; }
  /// Of a host: a number for memory, on it or its device, that is lent for a while. Traces show it.
  int new_slot() { return slots_++; }

 protected:
  Device(DeviceType type, Place place) : type(type), place(place) {}

  std::unique_ptr<Device> host_;
  std::unique_ptr<Device> disk_;  // a host's

 private:
  friend class Holding;  // adds and removes itself
  Ledger ledger_;
  Observer* observer_ = nullptr;
  std::vector<const Holding*> holdings_;
  int slots_ = 0;
};

/// Bytes: where a transfer between memory and a disk begins, it begins at multiples of this.
inline constexpr std::int64_t disk_page = 4096;
/// A disk without a bus to model; its files lie in its `folder`.
std::unique_ptr<Device> make_disk();
/// That CPU, with a host beside it.
std::unique_ptr<Device> make_cpu();
/// The host beside a GPU, which gives it page-locked memory.
std::unique_ptr<Device> make_host_of(Device& gpu);

/// What this process can use.
struct Gpus {
  int count = 0;
  std::string why_none;  // when count is 0
  std::vector<std::uint64_t> identities;  // of each; the same GPU has the same in every process
};

// Defined in compute/cuda/, in a build without CUDA by a file that has no GPU.
Gpus visible_gpus();
/// GPU `number`, from now on this process's. others: matrix products leave room for the messages of
/// other ranks. Throws Error (resources) when it cannot be had.
std::unique_ptr<Device> make_gpu(int number = 0, bool others = false);
}  // namespace zero
