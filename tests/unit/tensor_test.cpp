// SPDX-License-Identifier: MIT
// Memory and its books: what is reserved, held, borrowed, and how high the mountain was.
#include "memory/tensor.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "memory/error.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {

namespace {

/// The process's books of one kind, counted from the construction of this on.
class Change {
 public:
  explicit Change(Kind kind)
      : kind_(kind),
        before_(ledger().of(kind)) {
    ledger().restart_peaks();
  }
  std::int64_t reserved() const { return ledger().of(kind_).reserved - before_.reserved; }
  std::int64_t resident() const { return ledger().of(kind_).resident - before_.resident; }
  std::int64_t now() const { return ledger().of(kind_).now - before_.now; }
  std::int64_t peak() const { return ledger().of(kind_).peak - before_.now; }

 private:
  Kind kind_;
  KindBytes before_;
};

bool all_zero(View view) {
  return std::all_of(
      view.data, view.data + view.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

std::int64_t bytes_of_machine() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST_CASE("the ledger tells reserved, resident, in use and peak apart, by kind") {
  Ledger books;
  books.reserve(Kind::parameters, 100, true);
  books.reserve(Kind::gradients, 40, false);
  CHECK(books.of(Kind::parameters).reserved == 100);
  CHECK(books.of(Kind::parameters).resident == 100);
  CHECK(books.of(Kind::parameters).now == 100);
  CHECK(books.of(Kind::parameters).peak == 100);
  CHECK(books.of(Kind::gradients).reserved == 40);
  CHECK(books.of(Kind::gradients).resident == 0);
  CHECK(books.of(Kind::gradients).now == 0);
  CHECK(books.of(Kind::gradients).peak == 0);
  books.take(Kind::gradients, 40);
  books.give_back(Kind::gradients, 40);
  CHECK(books.of(Kind::gradients).now == 0);
  CHECK(books.of(Kind::gradients).peak == 40);
  CHECK(books.of(Kind::optimizer).reserved == 0);
  CHECK(books.reserved() == 140);
  books.unreserve(Kind::parameters, 100, true);
  books.unreserve(Kind::gradients, 40, false);
  CHECK(books.reserved() == 0);
  CHECK(books.of(Kind::parameters).resident == 0);
  CHECK(books.of(Kind::parameters).now == 0);
  CHECK(books.of(Kind::parameters).peak == 100);
}

TEST_CASE("the peak of the total is not the sum of the peaks") {
  Ledger books;
  books.reserve(Kind::parameters, 10, true);
  books.take(Kind::activations, 30);
  books.give_back(Kind::activations, 30);
  books.take(Kind::gradients, 25);
  CHECK(books.peak_of_total() == 10 + 30);
  books.take(Kind::gradients, 10);
  CHECK(books.peak_of_total() == 10 + 35);
  CHECK(books.of(Kind::activations).peak == 30);
  CHECK(books.of(Kind::gradients).peak == 35);
}

TEST_CASE("restarted peaks begin at what is in use") {
  Ledger books;
  books.reserve(Kind::parameters, 10, true);
  books.take(Kind::activations, 30);
  books.give_back(Kind::activations, 20);
  books.restart_peaks();
  CHECK(books.of(Kind::parameters).peak == 10);
  CHECK(books.of(Kind::activations).peak == 10);
  CHECK(books.peak_of_total() == 20);
  books.take(Kind::activations, 5);
  CHECK(books.of(Kind::activations).peak == 15);
  CHECK(books.peak_of_total() == 25);
}

TEST_CASE("more memory than the machine has is refused, with the numbers, and not booked") {
  const std::int64_t machine = bytes_of_machine();
  Ledger books;
  books.reserve(Kind::parameters, machine - 1000, true);
  books.reserve(Kind::gradients, 1000, false);
  try {
    books.reserve(Kind::activations, 1, false);
    FAIL("one byte more than the machine has");
  } catch (const Error& error) {
    const std::string what = error.what();
    CHECK(error.code == ExitCode::resources);
    CHECK(what.find("activations needs 1 bytes") != what.npos);
    CHECK(what.find(std::to_string(machine)) != what.npos);
  }
  CHECK(books.of(Kind::activations).reserved == 0);
  CHECK(books.reserved() == machine);
  const Change change(Kind::data);
  CHECK_THROWS_AS(Tensor(Kind::data, Dtype::fp32, machine / 4 + 1), Error);
  CHECK(change.reserved() == 0);
}

TEST_CASE("a tensor is zero, aligned to 64 bytes, held as long as it lives") {
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : {1, 31, 32, 33, 100000}) {
      const Change change(Kind::optimizer);
      {
        const Tensor tensor(Kind::optimizer, dtype, size);
        const View view = tensor.view();
        CHECK(view.size == size);
        CHECK(view.used == size);
        CHECK(view.dtype == dtype);
        CHECK(view.bytes() == size * bytes_of(dtype));
        CHECK(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
        CHECK(all_zero(view));
        CHECK(change.reserved() == view.bytes());
        CHECK(change.resident() == view.bytes());
        CHECK(change.now() == view.bytes());
        fill(view, [](std::int64_t) { return 1; });  // so that the next one gets used memory
      }
      CHECK(change.reserved() == 0);
      CHECK(change.resident() == 0);
      CHECK(change.now() == 0);
      CHECK(change.peak() == size * bytes_of(dtype));
    }
  }
}

TEST_CASE("a tensor of nothing is ordinary") {
  const Change change(Kind::optimizer);
  const Tensor tensor(Kind::optimizer, Dtype::fp32, 0);
  CHECK(tensor.size() == 0);
  CHECK(tensor.view().part(0, 0).size == 0);
  CHECK(change.reserved() == 0);
}

TEST_CASE("a moved buffer is booked once and given back once") {
  const Change change(Kind::workspace);
  {
    Buffer first(Kind::workspace, 1000, true);
    std::byte* const data = first.data();
    const Buffer second = std::move(first);
    CHECK(second.data() == data);
    CHECK(second.bytes() == 1000);
    CHECK(first.data() == nullptr);
    CHECK(change.reserved() == 1000);
    CHECK(change.now() == 1000);
  }
  CHECK(change.reserved() == 0);
  CHECK(change.now() == 0);
}

TEST_CASE("a scratch is reserved throughout and used while it is lent") {
  const Change change(Kind::activations);
  const Scratch scratch(Kind::activations, Dtype::bf16, 100);
  CHECK(change.reserved() == 200);
  CHECK(change.resident() == 0);
  CHECK(change.now() == 0);
  {
    const Booking loan = scratch.book();
    CHECK(loan.view().size == 100);
    CHECK(loan.view().used == 100);
    CHECK(loan.view().dtype == Dtype::bf16);
    CHECK(change.now() == 200);
  }
  CHECK(change.now() == 0);
  CHECK(change.peak() == 200);
  CHECK(change.resident() == 0);
}

TEST_CASE("what a scratch contains is left over from before") {
  const Scratch scratch(Kind::activations, Dtype::fp32, 4);
  Booking loan = scratch.book();
  std::byte* const data = loan.view().data;
  fill(loan.view(), [](std::int64_t i) { return i + 1; });
  loan.end();
  loan = scratch.book();
  CHECK(loan.view().data == data);
  CHECK(element(loan.view(), 3) == 4);
}

TEST_CASE("a loan ends once, whoever ends it") {
  const Change change(Kind::activations);
  const Scratch scratch(Kind::activations, Dtype::fp32, 10);
  Booking loan = scratch.book();
  Booking moved = std::move(loan);
  CHECK(change.now() == 40);
  CHECK_THROWS_AS(loan.view(), std::logic_error);
  loan.end();  // has nothing any more
  CHECK(change.now() == 40);
  moved.end();
  CHECK(change.now() == 0);
  moved.end();
  CHECK(change.now() == 0);
  CHECK_THROWS_AS(moved.view(), std::logic_error);
  CHECK_THROWS_AS(Booking().view(), std::logic_error);
}

TEST_CASE("a loan replaced by another of the same scratch is booked once") {
  const Change change(Kind::activations);
  const Scratch scratch(Kind::activations, Dtype::fp32, 10);
  Booking loan = scratch.book();
  loan = scratch.book();
  CHECK(change.now() == 40);
  CHECK(change.peak() == 40);
  Booking& same = loan;
  loan = std::move(same);
  CHECK(change.now() == 40);
  CHECK(loan.view().size == 10);
  loan.end();
  CHECK(change.now() == 0);
}

TEST_CASE("a loan replaced by one of another scratch ends") {
  const Change change(Kind::activations);
  const Scratch small(Kind::activations, Dtype::fp32, 10);
  const Scratch large(Kind::activations, Dtype::fp32, 100);
  Booking loan = small.book();
  loan = large.book();
  CHECK(change.now() == 400);
  CHECK(change.peak() == 440);  // for a moment both are lent
  loan = Booking();
  CHECK(change.now() == 0);
}

TEST_CASE("a part of a view knows how much of it is real") {
  const Tensor tensor(Kind::data, Dtype::fp16, 16);
  fill(tensor.view(), [](std::int64_t i) { return i; });
  View view = tensor.view();
  view.used = 10;
  const auto used = [&](std::int64_t offset, std::int64_t count) {
    const View part = view.part(offset, count);
    CHECK(part.size == count);
    CHECK(part.dtype == Dtype::fp16);
    if (count > 0) CHECK(element(part, 0) == static_cast<float>(offset));
    return part.used;
  };
  CHECK(used(0, 16) == 10);
  CHECK(used(0, 4) == 4);
  CHECK(used(8, 4) == 2);
  CHECK(used(10, 6) == 0);
  CHECK(used(12, 4) == 0);
  CHECK(used(16, 0) == 0);
}

TEST_CASE("a part that is not inside is refused") {
  const Tensor tensor(Kind::data, Dtype::fp32, 16);
  const View view = tensor.view();
  CHECK_THROWS_AS(view.part(0, 17), std::logic_error);
  CHECK_THROWS_AS(view.part(16, 1), std::logic_error);
  CHECK_THROWS_AS(view.part(-1, 2), std::logic_error);
  CHECK_THROWS_AS(view.part(1, -1), std::logic_error);
}

TEST_CASE("the kernel's own figure of the process's peak follows what is taken") {
  constexpr std::int64_t size = 64 << 20;
  const std::int64_t before = process_peak_bytes();
  const Buffer buffer(Kind::data, size, true);
  CHECK(before > 0);
  // Part of it may lie where something else was before, but not half: nothing here is that large.
  CHECK(process_peak_bytes() - before > size / 2);
}

}  // namespace zero::test
