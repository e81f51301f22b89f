// SPDX-License-Identifier: MIT
// Memory: Tensor holds it, Scratch reserves it for now and then, View points at it.
#pragma once
#include <span>

#include "memory/dtype.hpp"
#include "memory/error.hpp"
#include "memory/ledger.hpp"

namespace zero {
/// A run of elements that somebody else owns. The first `used` of its `size` elements are real,
/// the rest is padding, which is always zero.
struct View {
  std::byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t used = 0;
  Dtype dtype = Dtype::fp32;
  Device device = Device::cpu;
  int layer = -1;  // of the model; -1: no layer's
  std::int64_t start = 0;  // position of the first element within the layer

  /// Elements [offset, offset + count); throws std::logic_error when that is not inside.
  View part(std::int64_t offset, std::int64_t count) const;
  std::int64_t bytes() const { return size * bytes_of(dtype); }

  /// The elements as host memory. T is the caller's promise about dtype. Throws std::logic_error
  /// when they lie on a GPU: see OnHost.
  template <class T> std::span<T> as() const {
    expect(device != Device::cuda, "only host memory can be read element by element");
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(size)};
  }
};

/// Elements of a view as the host can read them: the view's own on the CPU, a copy of a GPU's. For
/// reports and tests; work on them must be done.
class OnHost {
 public:
  explicit OnHost(View view);
  template <class T> std::span<const T> as() const { return view_.as<T>(); }

 private:
  std::vector<std::byte> copy_;
  View view_;
};

/// Zeroed, 64-byte aligned memory of a device, in the ledger's books; freed with the object, when
/// no work that uses it is left. Move-only.
class Buffer {
 public:
  /// Throws Error (resources) when the device does not give that many bytes.
  Buffer(Device device, Kind kind, std::int64_t bytes, bool held, Memory memory = Memory::own);

  std::byte* data() const { return memory_.get(); }
  std::int64_t bytes() const { return facts().bytes; }
  Kind kind() const { return facts().kind; }
  /// Where it lies.
  Device device() const { return facts().lies(); }

 private:
  struct Release {  // the buffer's own facts, which giving it back takes
    Device device;
    Kind kind;
    std::int64_t bytes;
    bool held;
    Memory memory;
    Device lies() const { return memory == Memory::staging ? Device::host : device; }
    void operator()(std::byte* data) const;
  };
  const Release& facts() const { return memory_.get_deleter(); }

  std::unique_ptr<std::byte, Release> memory_;
};

/// Elements that are held for as long as the object lives: what "resident" counts.
class Tensor {
 public:
  Tensor(Device device, Kind kind, Dtype dtype, std::int64_t size, Memory memory = Memory::own)
      : buffer_(device, kind, size * bytes_of(dtype), true, memory), dtype_(dtype), size_(size) {
    if (size > 0) held.push_back({kind, view()});
  }

  /// All of the process's, in the order of their construction: for checks of every one.
  struct Held {
    Kind kind;
    View view;
  };
  static inline std::vector<Held> held;

  std::int64_t size() const { return size_; }
  Dtype dtype() const { return dtype_; }
  View view() const { return {buffer_.data(), size_, size_, dtype_, buffer_.device()}; }

 private:
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
};

class Scratch;

/// The time during which a Scratch counts as in use. Move-only.
class Booking {
 public:
  /// Throws std::logic_error when it has ended.
  View view() const;
  void end() { scratch_.reset(); }

 private:
  friend class Scratch;
  struct End {
    void operator()(const Scratch* scratch) const;
  };
  std::unique_ptr<const Scratch, End> scratch_;
};

/// Elements that are reserved at construction and used now and then, whole.
class Scratch {
 public:
  Scratch(Device device, Kind kind, Dtype dtype, std::int64_t size)
      : buffer_(device, kind, size * bytes_of(dtype), false), dtype_(dtype), size_(size) {}

  /// Books the bytes, once, until the last Booking of them ends: it counts, it does not lock. What
  /// the memory contains is left over from before.
  Booking book() const;

 private:
  friend class Booking;
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
  mutable int bookings_ = 0;
};
}  // namespace zero
