// SPDX-License-Identifier: MIT
// Memory: Tensor holds it, Scratch lends it now and then, View points at it.
#pragma once
#include <span>

#include "memory/device.hpp"
#include "memory/dtype.hpp"
#include "memory/error.hpp"

namespace zero {
/// Elements that somebody else owns: `used` real ones, then padding, always zero, up to `size`.
struct View {
  std::byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t used = 0;
  Dtype dtype = Dtype::fp32;
  Device* device = nullptr;  // null: host memory that is nobody's
  int layer = -1;  // of the model; -1: no layer's
  std::int64_t start = 0;  // position of the first element within the layer
  const char* name = nullptr;  // of the state that it is a part of; null: none, as activations
  int slot = -1;  // the room's that it is in for a while; -1: held throughout

  /// Elements [offset, offset + count); throws std::logic_error when that is not inside.
  View part(std::int64_t offset, std::int64_t count) const;
  std::int64_t bytes() const { return size * bytes_of(dtype); }
  DeviceType device_type() const { return device ? device->type : DeviceType::cpu; }
  bool on_gpu() const { return device_type() == DeviceType::cuda; }
  /// Can be read and written where it lies; else `data` is for its device alone, which copies.
  bool addressable() const { return !on_gpu() && place() != Place::disk; }
  /// Of nobody's memory the device's: a CPU computes there.
  Place place() const { return device ? device->place : Place::device; }

  /// T is the caller's promise. Throws std::logic_error when they lie on a GPU or disk: see OnHost.
  template <class T> std::span<T> as() const {
    expect(addressable(), "only host memory can be read element by element");
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(size)};
  }
};

/// A view's elements for the host to read; of a GPU's, a disk's a copy. Work on them must be done.
class OnHost {
 public:
  explicit OnHost(View view);
  template <class T> std::span<const T> as() const { return view_.as<T>(); }

 private:
  std::vector<std::byte> copy_;
  View view_;
};

/// Zeroed, 64-byte aligned memory, freed with the object; no work may use it then. Move-only.
class Buffer {
 public:
  /// In the device's ledger. gaps: bytes beside them that only let parts begin where a disk's pages
  /// do, in nobody's ledger. Throws Error (resources) when the device does not give so many bytes.
  Buffer(Device& device, Kind kind, std::int64_t bytes, bool held, Memory memory = Memory::own,
         std::int64_t gaps = 0);
  /// Page-locked memory of the host beside a GPU, in nobody's ledger. Throws as the other does.
  Buffer(Device& host, std::int64_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::int64_t bytes() const { return memory_.get_deleter().bytes; }
  Kind kind() const { return memory_.get_deleter().kind; }
  Device& device() const { return *memory_.get_deleter().device; }

 private:
  struct Release {  // the buffer's own facts, which giving it back takes
    Device* device;
    Kind kind;
    std::int64_t bytes;
    bool held;
    Memory memory;
    bool booked;
    void operator()(std::byte* data) const noexcept;
  };
  std::unique_ptr<std::byte, Release> memory_;
};

/// Elements that are held for as long as the object lives: what "resident" counts.
class Tensor {
 public:
  Tensor(Device& device, Kind kind, Dtype dtype, std::int64_t size, Memory memory = Memory::own,
         std::int64_t gaps = 0)
      : buffer_(device, kind, size * bytes_of(dtype), true, memory, gaps),
        dtype_(dtype),
        size_(size) {}

  std::int64_t size() const { return size_; }
  View view() const { return {buffer_.data(), size_, size_, dtype_, &buffer_.device()}; }

 private:
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
};

class Scratch;

/// Elements of a Scratch, in use until they are given back or the object goes. Move-only; the
/// Scratch stays where it is.
class Borrowed {
 public:
  /// Throws std::logic_error when they have been given back.
  View view() const;
  operator View() const { return view(); }
  void give_back() { scratch_.reset(); }

 private:
  friend class Scratch;
  struct GiveBack {
    void operator()(Scratch* scratch) const noexcept;
  };
  std::unique_ptr<Scratch, GiveBack> scratch_;
  View view_;
};

/// Elements that are reserved at construction and in use now and then.
class Scratch {
 public:
  Scratch(Device& device, Kind kind, Dtype dtype, std::int64_t size)
      : buffer_(device, kind, size * bytes_of(dtype), false),
        all_{buffer_.data(), size, size, dtype, &device} {}
  Scratch(const Scratch&) = delete;

  /// Books all bytes as in use until the last borrower gives back. The old values are still there.
  Borrowed borrow() { return borrow(all_); }
  /// The same, but lends only that part of all().
  Borrowed borrow(View part);
  View all() const { return all_; }

 private:
  friend class Borrowed;
  Buffer buffer_;
  View all_;
  int borrowers_ = 0;
  View lent_;  // to the first of them
};
}  // namespace zero
