// SPDX-License-Identifier: MIT
// Memory and its books: what is reserved, held, booked, and how high the mountain was.
#include "memory/tensor.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "tests/unit/checks.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {
namespace {
Scratch scratch_of(std::int64_t size, Dtype dtype = Dtype::fp32) {
  return Scratch(Device::cpu, Kind::activations, dtype, size);
}

bool all_zero(View view) {
  return std::all_of(view.data, view.data + view.bytes(),
                     [](std::byte b) { return b == std::byte{0}; });
}
}  // namespace

TEST_CASE("the ledger tells reserved, resident, in use and peak apart, by kind") {
  Ledger books;
  const auto of = [&](Kind kind) { return figures(books.of(kind)); };
  books.reserve(Kind::parameters, 100, true);
  books.reserve(Kind::gradients, 40, false);
  CHECK(of(Kind::parameters) == "100 100 100 100");
  CHECK(of(Kind::gradients) == "40 0 0 0");
  books.take(Kind::gradients, 40);
  CHECK(of(Kind::gradients) == "40 0 40 40");
  books.give_back(Kind::gradients, 40);
  CHECK(of(Kind::gradients) == "40 0 0 40");
  CHECK(of(Kind::optimizer) == "0 0 0 0");
  CHECK(books.reserved() == 140);
  books.unreserve(Kind::parameters, 100, true);
  books.unreserve(Kind::gradients, 40, false);
  CHECK(of(Kind::parameters) == "0 0 0 100");
  CHECK(books.reserved() == 0);
}

TEST_CASE("the peak of the total is not the sum of the peaks; restarted, both begin at now") {
  Ledger books;
  const auto peaks = [&] {
    return fmt::format("{} {} {} of {}", books.of(Kind::parameters).peak,
                       books.of(Kind::activations).peak, books.of(Kind::gradients).peak,
                       books.peak_of_total());
  };
  books.reserve(Kind::parameters, 10, true);
  books.take(Kind::activations, 30);
  books.give_back(Kind::activations, 28);
  books.take(Kind::gradients, 25);
  CHECK(peaks() == "10 30 25 of 40");
  books.take(Kind::gradients, 10);
  CHECK(peaks() == "10 30 35 of 47");
  books.restart_peaks();
  CHECK(peaks() == "10 2 35 of 47");
  books.give_back(Kind::gradients, 35);
  books.restart_peaks();
  books.take(Kind::activations, 5);
  CHECK(peaks() == "10 7 0 of 17");
}

TEST_CASE("memory that the system does not give is refused, with the number, and not booked") {
  const Change change(Kind::data);
  const std::int64_t beyond_all_addresses = std::int64_t{1} << 60;
  check_refused(
      ExitCode::resources,
      {"the system gave no 1152921504606846976 bytes for data", "use fewer or narrower layers"},
      [&] { Buffer(Device::cpu, Kind::data, beyond_all_addresses, true); });
  check_refused(ExitCode::resources,
                {"the system gave no 1152921504606846976 bytes of host memory"},
                [&] { HostBuffer(Device::cpu, beyond_all_addresses); });
  CHECK(change.figures() == "0 0 0 0");
}

TEST_CASE("a tensor is zero, aligned to 64 bytes, held as long as it lives") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : {0, 1, 31, 32, 33, 100000}) {
      const std::int64_t bytes = size * bytes_of(dtype);
      const Change change(Kind::optimizer);
      {
        const Tensor tensor(Device::cpu, Kind::optimizer, dtype, size);
        const View view = tensor.view();
        CHECK(view.size == size);
        CHECK(view.used == size);
        CHECK(view.dtype == dtype);
        CHECK(view.device == Device::cpu);
        CHECK(view.layer == -1);
        CHECK(view.bytes() == bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
        CHECK(all_zero(view));
        CHECK(change.figures() == figures({bytes, bytes, bytes, bytes}));
        if (size > 0) fill(view, [](std::int64_t) { return 1; });  // so the next gets used memory
      }
      CHECK(change.figures() == figures({0, 0, 0, bytes}));
    }
  }
}

TEST_CASE("a moved buffer is booked once and given back once") {
  const Change change(Kind::workspace);
  {
    Buffer first(Device::cpu, Kind::workspace, 1000, true);
    std::byte* const data = first.data();
    const Buffer second = std::move(first);
    CHECK(second.data() == data);
    CHECK(second.bytes() == 1000);
    CHECK(first.data() == nullptr);
    CHECK(change.figures() == "1000 1000 1000 1000");
  }
  CHECK(change.figures() == "0 0 0 1000");
}

TEST_CASE("a scratch is reserved throughout, in use while booked, and keeps what it contains") {
  const Change change(Kind::activations);
  const Scratch scratch = scratch_of(100, Dtype::bf16);
  CHECK(change.figures() == "200 0 0 0");
  for (int times = 0; times < 2; ++times) {
    const Booking booking = scratch.book();
    const View view = booking.view();
    CHECK(view.size == 100);
    CHECK(view.used == 100);
    CHECK(view.dtype == Dtype::bf16);
    CHECK(view.device == Device::cpu);
    CHECK(change.figures() == "200 0 200 200");
    if (times > 0) CHECK(element(view, 3) == 4);
    fill(view, [](std::int64_t i) { return i + 1; });
  }
  CHECK(change.figures() == "200 0 0 200");
}

TEST_CASE("a booking ends once, whoever ends it, and lends no memory afterwards") {
  const Change change(Kind::activations);
  const Scratch scratch = scratch_of(10);
  Booking booking = scratch.book();
  Booking moved = std::move(booking);
  booking.end();  // has nothing any more
  CHECK(change.figures() == "40 0 40 40");
  for (int times = 0; times < 2; ++times) {
    moved.end();
    CHECK(change.figures() == "40 0 0 40");
  }
  CHECK_THROWS_AS(booking.view(), std::logic_error);
  CHECK_THROWS_AS(moved.view(), std::logic_error);
  CHECK_THROWS_AS(Booking().view(), std::logic_error);
}

TEST_CASE("several bookings of a scratch count once, until the last of them ends") {
  const Change change(Kind::activations);
  const Scratch small = scratch_of(10), large = scratch_of(100);
  Booking booking = small.book();
  Booking other = small.book();
  booking = small.book();
  Booking& same = booking;
  booking = std::move(same);
  CHECK(booking.view().size == 10);
  CHECK(change.figures() == "440 0 40 40");
  booking = large.book();
  CHECK(change.figures() == "440 0 440 440");
  other.end();
  CHECK(change.figures() == "440 0 400 440");
  booking = Booking();
  CHECK(change.figures() == "440 0 0 440");
}

TEST_CASE("a part of a view knows where it lies and how much of it is real") {
  const Tensor tensor(Device::cpu, Kind::data, Dtype::fp16, 16);
  fill(tensor.view(), [](std::int64_t i) { return i; });
  View view = tensor.view();
  view.used = 10;
  view.layer = 3;
  view.start = 100;
  const auto used = [&](std::int64_t offset, std::int64_t count) {
    const View part = view.part(offset, count);
    CHECK(part.size == count);
    CHECK(part.dtype == Dtype::fp16);
    CHECK(part.device == Device::cpu);
    CHECK(part.layer == 3);
    CHECK(part.start == 100 + offset);
    if (count > 0) CHECK(element(part, 0) == static_cast<float>(offset));
    return part.used;
  };
  CHECK(used(0, 16) == 10);
  CHECK(used(0, 4) == 4);
  CHECK(used(8, 4) == 2);
  CHECK(used(10, 6) == 0);
  CHECK(used(12, 4) == 0);
  CHECK(used(16, 0) == 0);
  CHECK(view.part(4, 8).part(2, 2).start == 106);
  for (const auto& [offset, count] : {std::pair{0, 17}, {16, 1}, {-1, 2}, {1, -1}}) {
    CHECK_THROWS_AS(view.part(offset, count), std::logic_error);
  }
}

TEST_CASE("elements on a GPU are not read as host memory") {
  View view;
  view.device = Device::cuda;
  CHECK_THROWS_AS(view.as<float>(), std::logic_error);
}

TEST_CASE("the kernel's own figure of the process's peak follows what is taken") {
  constexpr std::int64_t size = 64 << 20;
  const std::int64_t before = process_peak_bytes();
  const Buffer buffer(Device::cpu, Kind::data, size, true);
  CHECK(before > 0);
  // Part of it may lie where something else was before, but not half: nothing here is that large.
  CHECK(process_peak_bytes() - before > size / 2);
}
}  // namespace zero::test
