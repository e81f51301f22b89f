// SPDX-License-Identifier: MIT
#include "tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "error.hpp"

namespace zero {

View View::part(std::int64_t offset, std::int64_t count) const {
  expect(offset >= 0 && count >= 0 && offset + count <= size, "a part must lie inside its view");
  return {data + offset * bytes_of(dtype),
          count,
          std::clamp<std::int64_t>(used - offset, 0, count),
          dtype};
}

Buffer::Buffer(Kind kind, std::int64_t bytes, bool held)
    : kind_(kind),
      bytes_(bytes),
      held_(held),
      data_(nullptr) {
  constexpr std::int64_t alignment = 64;
  ledger().reserve(kind, bytes, held);
  const std::int64_t whole_lines = (bytes + alignment - 1) / alignment * alignment;
  if (bytes > 0) data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, whole_lines));
  if (bytes > 0 && !data_) {
    ledger().unreserve(kind, bytes, held);
    throw Error(ExitCode::resources,
                fmt::format("the system gave no {} bytes for {}: use fewer or narrower layers, or "
                            "more ranks",
                            bytes,
                            name_of(kind)));
  }
  // Writing it also makes the system hand it over now and not page by page inside a step.
  if (data_) std::memset(data_, 0, whole_lines);
}

Buffer::~Buffer() {
  if (bytes_ > 0) ledger().unreserve(kind_, bytes_, held_);
  std::free(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : kind_(other.kind_),
      bytes_(std::exchange(other.bytes_, 0)),
      held_(other.held_),
      data_(std::exchange(other.data_, nullptr)) {}

Loan::Loan(const Scratch& scratch)
    : scratch_(&scratch) {
  if (scratch.loans_++ > 0) return;
  ledger().take(scratch.buffer_.kind(), scratch.buffer_.bytes());
}

Loan::Loan(Loan&& other) noexcept
    : scratch_(std::exchange(other.scratch_, nullptr)) {}

Loan& Loan::operator=(Loan&& other) noexcept {
  if (this != &other) {
    end();
    scratch_ = std::exchange(other.scratch_, nullptr);
  }
  return *this;
}

void Loan::end() {
  const Scratch* ended = std::exchange(scratch_, nullptr);
  if (!ended || --ended->loans_ > 0) return;
  ledger().give_back(ended->buffer_.kind(), ended->buffer_.bytes());
}

View Loan::view() const {
  expect(scratch_ != nullptr, "a loan that has ended has no memory");
  return {scratch_->buffer_.data(), scratch_->size_, scratch_->size_, scratch_->dtype_};
}

}  // namespace zero
