// SPDX-License-Identifier: MIT
// Memory: a Tensor owns it for the whole run, a Scratch lends it for a while, a View points to it.
#pragma once
#include <span>

#include "memory/device.hpp"
#include "memory/dtype.hpp"
#include "memory/error.hpp"

namespace zero {
/// T, or const T if Byte is const.
template <class Byte, class T>
using SameConst = std::conditional_t<std::is_const_v<Byte>, const T, T>;

/// Points to `size` elements that it does not own: `used` values, then zeros as padding. A View may
/// write the elements. A ConstView only reads them; a View converts to a ConstView.
template <class Byte> struct ViewOf {
  Byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t used = 0;
  Dtype dtype = Dtype::fp32;
  Device* device = nullptr;  // null: host memory in no ledger
  int layer = -1;  // of the model; -1: no layer
  std::int64_t start = 0;  // position of the first element within the layer
  const char* name = nullptr;  // of the State that the elements are part of; null: of no State
  int slot = -1;  // number of the buffer in which they are for a while, for traces; else -1

  /// Returns elements [offset, offset + count). Throws std::logic_error if any are not in the view.
  ViewOf part(std::int64_t offset, std::int64_t count) const {
    expect(offset >= 0 && count >= 0 && offset + count <= size, "a part must lie inside its view");
    const auto left = std::clamp<std::int64_t>(used - offset, 0, count);
    Byte* const begin = data + offset * bytes_of(dtype);
    return {begin, count, left, dtype, device, layer, start + offset, name, slot};
  }
  std::int64_t bytes() const { return size * bytes_of(dtype); }
  DeviceType device_type() const { return device ? device->type : DeviceType::cpu; }
  bool on_gpu() const { return device_type() == DeviceType::cuda; }
  /// Whether the CPU can read and write the elements. If not, only the device can copy them.
  bool addressable() const { return !on_gpu() && place() != Place::disk; }
  /// Without a device: Place::device, where a CPU that computes has its tensors, in host memory.
  Place place() const { return device ? device->place : Place::device; }

  /// T must be the type of `dtype`. Throws std::logic_error for a GPU's or disk's view: use OnHost.
  template <class T> auto as() const {
    expect(addressable(), "only host memory can be read element by element");
    return std::span(reinterpret_cast<SameConst<Byte, T>*>(data), static_cast<std::size_t>(size));
  }
  operator ConstView() const requires(!std::is_const_v<Byte>) {
    return {data, size, used, dtype, device, layer, start, name, slot};
  }
};

/// Lets the CPU read a view's elements; copies a GPU's or disk's first. No stream may write them.
class OnHost {
 public:
  explicit OnHost(ConstView view);
  template <class T> std::span<const T> as() const { return view_.as<T>(); }

 private:
  std::vector<std::byte> copy_;
  ConstView view_;
};

/// Owns zeroed, 64-byte aligned memory. No work may use it when the Buffer is destroyed. Move-only.
class Buffer {
 public:
  /// Books `bytes` in the ledger, resident or not. gaps: more bytes, in no ledger, which let parts
  /// begin at pages of a disk. Throws Error (resources) if the device does not give the memory.
  Buffer(Device& device, Kind kind, std::int64_t bytes, bool resident,
         Memory memory = Memory::ordinary, std::int64_t gaps = 0);
  /// Takes pinned host memory, in no ledger, for a GPU's MPI messages and sums. Throws like above.
  Buffer(Device& host, std::int64_t bytes);

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::int64_t bytes() const { return memory_.get_deleter().bytes; }
  Kind kind() const { return memory_.get_deleter().kind; }
  Device& device() const { return *memory_.get_deleter().device; }

 private:
  /// Frees the memory, tells the device's observer. If the observer throws, the run ends.
  struct Release {
    Device* device;
    Kind kind;
    std::int64_t bytes;
    bool resident;
    Memory memory;
    bool booked;  // in the ledger
    void operator()(std::byte* data) const noexcept;
  };
  std::unique_ptr<std::byte, Release> memory_;
};

/// Owns elements that are in use as long as the Tensor lives: the ledger's resident bytes.
class Tensor {
 public:
  Tensor(Device& device, Kind kind, Dtype dtype, std::int64_t size,
         Memory memory = Memory::ordinary, std::int64_t gaps = 0)
      : buffer_(device, kind, size * bytes_of(dtype), true, memory, gaps),
        dtype_(dtype),
        size_(size) {}

  std::int64_t size() const { return size_; }
  View view() { return {buffer_.data(), size_, size_, dtype_, &buffer_.device()}; }
  ConstView view() const { return {buffer_.data(), size_, size_, dtype_, &buffer_.device()}; }

 private:
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
};

class Scratch;

/// Borrows elements of a Scratch until give_back() or its own end. The Scratch must outlive it.
class Borrowed {
 public:
  /// Throws std::logic_error after give_back().
  View view() const;
  operator View() const { return view(); }
  operator ConstView() const { return view(); }
  void give_back() { scratch_.reset(); }

 private:
  friend class Scratch;
  /// The last borrower tells the device's observer. If the observer throws, the run ends.
  struct GiveBack {
    void operator()(Scratch* scratch) const noexcept;
  };
  std::unique_ptr<Scratch, GiveBack> scratch_;
  View view_;
};

/// Reserves memory at construction, and lends it. Immovable, because each Borrowed points to it.
class Scratch {
 public:
  Scratch(Device& device, Kind kind, Dtype dtype, std::int64_t size)
      : buffer_(device, kind, size * bytes_of(dtype), false),
        all_{buffer_.data(), size, size, dtype, &device} {}
  Scratch(const Scratch&) = delete;

  /// Lends the elements, with their old values. All bytes are in use until nobody borrows any more.
  Borrowed borrow() { return borrow(all_); }
  /// The same, but lends only that part of all().
  Borrowed borrow(View part);
  View all() { return all_; }

 private:
  friend class Borrowed;
  Buffer buffer_;
  View all_;
  int borrowers_ = 0;
  ConstView lent_;  // the first borrower's view, under which the observer hears of all bytes
};
}  // namespace zero
