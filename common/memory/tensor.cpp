// SPDX-License-Identifier: MIT
#include "memory/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "memory/error.hpp"

namespace zero {
View View::part(std::int64_t offset, std::int64_t count) const {
  expect(offset >= 0 && count >= 0 && offset + count <= size, "a part must lie inside its view");
  return {data + offset * bytes_of(dtype),
          count,
          std::clamp<std::int64_t>(used - offset, 0, count),
          dtype,
          device,
          layer,
          start + offset};
}

void View::expect_host() const {
  expect(device == Device::cpu, "only host memory can be read element by element");
}

OnHost::OnHost(View view) : view_(view) {
  if (view.device == Device::cpu) return;
  copy_.resize(view.bytes());
  memory_of(view.device).copy(copy_.data(), view.data, view.bytes());
  view_.data = copy_.data();
  view_.device = Device::cpu;
}

Buffer::Buffer(Device device, Kind kind, std::int64_t bytes, bool held)
    : device_(device), kind_(kind), bytes_(bytes), held_(held), data_(nullptr) {
  if (bytes > 0) {
    data_ = memory_of(device).allocate(bytes);
    ++allocations_so_far;
  }
  if (bytes > 0 && !data_) {
    throw Error(ExitCode::resources,
                fmt::format("the {} gave no {} bytes for {}: use fewer or narrower layers, or "
                            "more ranks",
                            device_ == Device::cpu ? "system" : "GPU", bytes, name_of(kind)));
  }
  ledger().reserve(kind, bytes, held);
}

Buffer::~Buffer() {
  if (bytes_ > 0) ledger().unreserve(kind_, bytes_, held_);
  if (data_) memory_of(device_).release(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_),
      kind_(other.kind_),
      bytes_(std::exchange(other.bytes_, 0)),
      held_(other.held_),
      data_(std::exchange(other.data_, nullptr)) {}

Booking::Booking(const Scratch& scratch) : scratch_(&scratch) {
  if (scratch.bookings_++ > 0) return;
  ledger().take(scratch.buffer_.kind(), scratch.buffer_.bytes());
}

Booking::Booking(Booking&& other) noexcept : scratch_(std::exchange(other.scratch_, nullptr)) {}

Booking& Booking::operator=(Booking&& other) noexcept {
  if (this != &other) {
    end();
    scratch_ = std::exchange(other.scratch_, nullptr);
  }
  return *this;
}

void Booking::end() {
  const Scratch* ended = std::exchange(scratch_, nullptr);
  if (!ended || --ended->bookings_ > 0) return;
  ledger().give_back(ended->buffer_.kind(), ended->buffer_.bytes());
}

View Booking::view() const {
  expect(scratch_ != nullptr, "a booking that has ended has no memory");
  const Buffer& memory = scratch_->buffer_;
  return {memory.data(), scratch_->size_, scratch_->size_, scratch_->dtype_, memory.device()};
}
}  // namespace zero
