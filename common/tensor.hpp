// SPDX-License-Identifier: MIT
// Memory: Tensor holds it, Scratch reserves it and lends it out, View points at it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtype.hpp"
#include "ledger.hpp"

namespace zero {

/// A run of elements that somebody else owns. The first `used` of its `size` elements are real,
/// the rest is padding, which is always zero.
struct View {
  std::byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t used = 0;
  Dtype dtype = Dtype::fp32;

  /// Elements [offset, offset + count); throws std::logic_error when that is not inside.
  View part(std::int64_t offset, std::int64_t count) const;
  std::int64_t bytes() const { return size * bytes_of(dtype); }

  /// The elements as host memory. T is the caller's promise about dtype.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(size)};
  }
};

/// Zeroed, 64-byte aligned memory in the ledger's books; freed with the object. Move-only.
class Buffer {
 public:
  /// Throws Error (resources) when the system does not give that many bytes.
  Buffer(Kind kind, std::int64_t bytes, bool held);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
  std::int64_t bytes_;
  bool held_;
  std::byte* data_;
};

/// Elements that are held for as long as the object lives: what "resident" counts.
class Tensor {
 public:
  Tensor(Kind kind, Dtype dtype, std::int64_t size)
      : buffer_(kind, size * bytes_of(dtype), true),
        dtype_(dtype),
        size_(size) {}

  std::int64_t size() const { return size_; }
  View view() const { return {buffer_.data(), size_, size_, dtype_}; }

 private:
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
};

class Loan;

/// Elements that are reserved at construction and borrowed now and then, whole.
class Scratch {
 public:
  Scratch(Kind kind, Dtype dtype, std::int64_t size)
      : buffer_(kind, size * bytes_of(dtype), false),
        dtype_(dtype),
        size_(size) {}

  /// Books the bytes, once, until the last Loan of them ends. What the memory contains is left
  /// over from before.
  Loan borrow() const;

 private:
  friend class Loan;
  Buffer buffer_;
  Dtype dtype_;
  std::int64_t size_;
  mutable int loans_ = 0;
};

/// The time during which a Scratch counts as used. Move-only.
class Loan {
 public:
  Loan() = default;
  explicit Loan(const Scratch& scratch);
  ~Loan() { end(); }
  Loan(Loan&& other) noexcept;
  Loan& operator=(Loan&& other) noexcept;

  View view() const;
  void end();

 private:
  const Scratch* scratch_ = nullptr;
};

inline Loan Scratch::borrow() const {
  return Loan(*this);
}

}  // namespace zero
