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

/// The ledger in which an allocation is booked.
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
/// The name of such a copy in traces and logs, by the place at the other end of the host's bus.
inline constexpr By<Place, By<Direction, const char*>> copy_names{
    By<Direction, const char*>{"to_host", "to_device"}, By<Direction, const char*>{},
    By<Direction, const char*>{"read", "write"}};

struct Bus {
  double gb_per_s = 0;  // 10^9 bytes; copies are slowed down to it; 0: they are not
  /// Bytes copied so far, by direction. Read them when the streams are idle.
  By<Direction, std::atomic<std::int64_t>> bytes{};
};

class Device;
class StateTensor;
template <class Byte> struct ViewOf;  // in tensor.hpp
using View = ViewOf<std::byte>;
using ConstView = ViewOf<const std::byte>;
class StreamObserver;  // of a stream: compute/here.hpp

/// Receives callbacks on the trainer's thread. What it throws in a destructor ends the process.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  /// Called for each new stream. Returns what observes the stream and outlives it; null: nothing.
  virtual StreamObserver* stream_observer(const char* stream) = 0;
  /// `bytes` more (negative: fewer) are in use on that device. view: for which elements, or null.
  virtual void on_booked(const Device& on, Kind kind, std::int64_t bytes,
                         const ConstView* view) = 0;
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;

  const DeviceType type;
  const Place place;
  /// The host beside this device; a host's is itself.
  Device& host() { return host_ ? *host_ : *this; }
  /// For a device that computes: itself, its host, or its host's disk.
  Device& at(Place there) {
    return there == Place::device ? *this : there == Place::host ? host() : *host().disk_;
  }
  virtual bool can_pin() const { return false; }
  /// Each thread that works for the device calls it once, first.
  virtual void bind_thread() {}

  Bus bus;  // between it and its host
  std::string folder = "/var/tmp";  // of a disk: where its files are
  int threads = 1;  // of a CPU: threads that share Adam's work on a stream made from now on
  std::function<void()> check_peers;  // polled while the host waits; throws if a peer is gone
  int fp64_costs = 1;  // how many times as long as in fp32 an operation takes in fp64
  std::int64_t allocations = 0;  // calls of allocate() so far; pinned memory counts on the GPU
  std::atomic<std::int64_t> waits = 0;  // how often the host has waited for the device's queue

  /// Zeroed memory, aligned to at least 64 bytes; null when the system gives none.
  virtual std::byte* allocate(std::int64_t bytes, Memory memory_type) = 0;
  virtual void release(std::byte* memory, Memory memory_type) noexcept = 0;
  /// Copies now. Either end may be host memory. No stream may be using the memory.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// Bytes that could still be allocated; on the host, by the system's estimate.
  virtual std::int64_t available() const = 0;
  /// The maker's name of the device; empty for a CPU.
  virtual std::string name() const { return ""; }
  const Ledger& ledger() const { return ledger_; }
  /// Ledger's functions of these names, and their callbacks.
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
  /// The tensors that a trainer holds here, in the order of their construction.
  std::span<StateTensor* const> state_tensors() { return state_tensors_; }
  std::span<const StateTensor* const> state_tensors() const { return state_tensors_; }
  /// Of a host: a number for memory, on it or its device, that is lent for a while. Traces show it.
  int new_slot() { return slots_++; }

 protected:
  Device(DeviceType type, Place place) : type(type), place(place) {}

  std::unique_ptr<Device> host_;
  std::unique_ptr<Device> disk_;  // a host's

 private:
  friend class StateTensor;  // adds and removes itself
  Ledger ledger_;
  DeviceObserver* observer_ = nullptr;
  std::vector<StateTensor*> state_tensors_;
  int slots_ = 0;
};

/// Bytes. Transfers between memory and a disk begin at multiples of it.
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
/// GPU `number`, on which this process works from now on. others: the run has other ranks, for
/// whose messages matrix products leave room. Throws Error (resources) when the GPU cannot be had.
std::unique_ptr<Device> make_gpu(int number = 0, bool others = false);
}  // namespace zero
