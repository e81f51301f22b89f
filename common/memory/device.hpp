// SPDX-License-Identifier: MIT
// Where tensors lie and arithmetic runs: a device that computes, its host, and the host's disk. A
// GPU's host is the machine around it. A CPU's host is modelled: the same memory, another ledger.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/ledger.hpp"

namespace zero {
enum class DeviceType { cpu, cuda };
template <> inline constexpr std::array names_of<DeviceType>{"cpu", "cuda"};

/// Where memory lies. Each place has a ledger of its own.
enum class Place { device, host, disk };
template <> inline constexpr std::array names_of<Place>{"device", "host", "disk"};

/// Ordinary memory, or pinned (page-locked) host memory, which a GPU can copy while it computes.
enum class Memory { ordinary, pinned };

/// The direction of a copy between the host and its device, or the host and its disk.
enum class Direction { to_host, from_host };
template <> inline constexpr std::array names_of<Direction>{"to_host", "from_host"};
constexpr Direction direction_to(Place place) {
  return place == Place::host ? Direction::to_host : Direction::from_host;
}
/// [place][direction]: a copy's name in traces and logs. place: its end that is not on the host.
inline constexpr By<Place, By<Direction, const char*>> copy_names{
    By<Direction, const char*>{"to_host", "to_device"}, By<Direction, const char*>{},
    By<Direction, const char*>{"read", "write"}};

/// The connection between a host and its device, or its disk.
struct Bus {
  double gb_per_s = 0;  // copies each way are slowed down to so many 10^9 bytes/s; 0: they are not
  /// Bytes copied so far, by direction. Read them when the streams are idle.
  By<Direction, std::atomic<std::int64_t>> bytes{};
};

class Device;
class StateTensor;
template <class Byte> struct ViewOf;  // in tensor.hpp
using View = ViewOf<std::byte>;
using ConstView = ViewOf<const std::byte>;
class StreamObserver;  // in compute/here.hpp

/// Receives callbacks on the trainer's thread. If one throws in a destructor, the process ends.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  /// Returns a new stream's observer, or null. The caller does not own it. It outlives the stream.
  virtual StreamObserver* stream_observer(const char* stream) = 0;
  /// Called when `bytes` more (negative: fewer) are in use on `on`. view: the elements, or null.
  virtual void on_booked(const Device& on, Kind kind, std::int64_t bytes,
                         const ConstView* view) = 0;
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;

  const DeviceType type;
  const Place place;
  /// Returns the host beside this device. Called on a host, returns that host.
  Device& host() { return host_ ? *host_ : *this; }
  /// Call it on a device that computes. Returns that device, its host, or its host's disk.
  Device& at(Place there) {
    return there == Place::device ? *this : there == Place::host ? host() : *host().disk_;
  }
  virtual bool can_pin() const { return false; }  // whether pinned memory can be had here
  /// Each thread that works for the device calls it once, first.
  virtual void bind_thread() {}

  Bus bus;  // between this device, or disk, and its host
  std::string folder = "/var/tmp";  // of a disk: where its files are
  int threads = 1;  // for a CPU's Adam, if it also rounds weights. Set it before you make streams
  /// NCCL's transport sets it; else null. wait_for() calls it; it throws Error if a peer is gone.
  std::function<void()> check_peers;
  int fp64_costs = 1;  // the time of an operation in fp64, in units of its time in fp32
  std::int64_t allocations = 0;  // calls of allocate() so far; a GPU counts its host's pinned ones
  std::atomic<std::int64_t> waits = 0;  // times that a host's thread waited for the device

  /// Returns zeroed memory, aligned to at least 64 bytes. If none is left: returns null, or, on a
  /// disk, throws Error (resources). The caller must release() it with the same memory_type.
  virtual std::byte* allocate(std::int64_t bytes, Memory memory_type) = 0;
  virtual void release(std::byte* memory, Memory memory_type) noexcept = 0;
  /// Copies now. Either end may be host memory. No stream may use the memory. Throws Error
  /// (resources), for example when a disk cannot be read.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// Returns how many bytes could still be allocated; on a host the system estimates it.
  virtual std::int64_t available() const = 0;
  /// Returns the maker's name of the device; empty for a CPU.
  virtual std::string name() const { return ""; }
  const Ledger& ledger() const { return ledger_; }
  // These call the ledger's functions. reserve() and book() also tell the observer of bytes in use.
  void reserve(Kind kind, std::int64_t bytes, bool resident) {
    ledger_.reserve(kind, bytes, resident);
    if (resident && observer_) observer_->on_booked(*this, kind, bytes, nullptr);
  }
  void book(Kind kind, std::int64_t bytes, const ConstView* view) {
    ledger_.book(kind, bytes);
    if (observer_) observer_->on_booked(*this, kind, bytes, view);
  }
  void restart_peaks() { ledger_.restart_peaks(); }
  /// From now on `by` receives the callbacks of this device, its host and its disk; null: nobody.
  void observe(DeviceObserver* by) {
    for (const Place there : every<Place>) at(there).observer_ = by;
  }
  DeviceObserver* observer() const { return observer_; }
  /// Returns the tensors that a trainer holds here, in the order of their construction.
  std::span<StateTensor* const> state_tensors() { return state_tensors_; }
  std::span<const StateTensor* const> state_tensors() const { return state_tensors_; }
  /// Call it on a host. Returns a new number, for traces, of a buffer there or on its device.
  int new_slot() { return slots_++; }

 protected:
  Device(DeviceType type, Place place) : type(type), place(place) {}

  std::unique_ptr<Device> host_;
  std::unique_ptr<Device> disk_;  // only a host has one

 private:
  friend class StateTensor;  // adds and removes itself
  Ledger ledger_;
  DeviceObserver* observer_ = nullptr;
  std::vector<StateTensor*> state_tensors_;
  int slots_ = 0;
};

/// Bytes of a disk's page. Whole pages bypass the system's page cache (disk.cpp).
inline constexpr std::int64_t disk_page = 4096;
std::unique_ptr<Device> make_disk();
std::unique_ptr<Device> make_cpu();
std::unique_ptr<Device> make_host_of(Device& gpu);

struct Gpus {
  int count = 0;
  std::string why_none;  // when count is 0
  std::vector<std::uint64_t> identities;  // by number; a GPU has the same one in every process
};

// Defined in compute/cuda/; a build without CUDA has a file that finds no GPU.
Gpus visible_gpus();
/// Opens GPU `number`, on which this process works from now on. others: the run has other ranks, so
/// products leave up to message_blocks multiprocessors to messages. Throws Error (resources).
std::unique_ptr<Device> make_gpu(int number = 0, bool others = false);
}  // namespace zero
