// SPDX-License-Identifier: MIT
// Memory and its books: what is reserved, held, booked, and how high the mountain was. And the cut
// of the parameters: every element has one owner, wherever the borders fall.
#include "memory/layout.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using std::tuple;
using Sizes = std::vector<std::int64_t>;

/// Odd sizes, sizes below the number of ranks, and sizes just beside a multiple of quantum * ranks.
const Sizes sizes{1, 2, 7, 8, 9, 13, 1000, 63, 64, 65, 127, 192, 193};

Scratch scratch_of(std::int64_t size, Dtype dtype = Dtype::fp32) {
  return Scratch(Device::cpu, Kind::activations, dtype, size);
}

Tensor tensor_of(std::int64_t size, Dtype dtype = Dtype::fp32) {
  return Tensor(Device::cpu, Kind::parameters, dtype, size);
}

/// All that a view says of itself.
auto words(View view) {
  return tuple(view.size, view.used, view.dtype, view.device, view.layer, view.start);
}

/// The books of one kind in both places.
struct Changes {
  explicit Changes(Kind kind) : on_device(kind), on_host(kind, Place::host) {}
  std::string figures() const { return on_device.figures() + ", " + on_host.figures(); }

  const Change on_device, on_host;
};

/// The cut as one rank has it: its shard of a layer begins where that of the rank before ends.
void check_layout(int rank, int ranks, std::int64_t quantum) {
  INFO("rank ", rank, " of ", ranks, ", quantum ", quantum);
  const Layout layout(sizes, rank, ranks, quantum);
  const Tensor full = tensor_of(layout.full_size()), shards = tensor_of(layout.shard_size());
  const Tensor buffer = tensor_of(layout.largest_layer());
  for (const Tensor* each : {&full, &shards, &buffer}) {
    fill(each->view(), [](std::int64_t i) { return i; });
  }
  std::int64_t parameters = 0, before = 0, largest = 0;
  for (int l = 0; l < layout.layers(); ++l) {
    const std::int64_t padded = layout.layer_size(l), share = padded / ranks, first = rank * share;
    CHECK(padded % (quantum * ranks) == 0);
    CHECK(padded >= sizes[l]);
    CHECK(padded - sizes[l] < quantum * ranks);
    CHECK(layout.layer_start(l) == parameters);
    CHECK(layout.shard_start(l) == first);
    const auto check = [&](View view, std::int64_t start, std::int64_t size, std::int64_t place) {
      const auto used = std::clamp<std::int64_t>(sizes[l] - start, 0, size);
      CHECK(words(view) == tuple(size, used, Dtype::fp32, Device::cpu, l, start));
      CHECK(element(view, 0) == static_cast<float>(place));
    };
    const View layer = layout.layer(full, l), slot = layout.layer_in(buffer.view(), l);
    check(layer, 0, padded, before);
    check(slot, 0, padded, 0);
    check(layout.shard(shards, l), first, share, before / ranks);
    check(layout.shard_of(layer), first, share, before + first);
    check(layout.shard_of(slot), first, share, first);
    parameters += sizes[l];
    before += padded;
    largest = std::max(largest, padded);
  }
  CHECK(tuple(layout.ranks(), layout.layers()) == tuple(ranks, std::ssize(sizes)));
  CHECK(tuple(layout.parameters(), layout.largest_layer()) == tuple(parameters, largest));
  CHECK(tuple(layout.full_size(), layout.shard_size() * ranks) == tuple(before, before));
}
}  // namespace

TEST_CASE("the peak of the total is not the sum of the peaks; restarted, both begin at now") {
  Ledger books;
  const auto peaks = [&] {
    return fmt::format("{} {} {} of {}", books.of(Kind::parameters).peak,
                       books.of(Kind::activations).peak, books.of(Kind::gradients).peak,
                       books.peak_of_total());
  };
  books.reserve(Kind::parameters, 10, true);
  books.take(Kind::activations, 30);
  books.take(Kind::activations, -28);
  books.take(Kind::gradients, 25);
  CHECK(peaks() == "10 30 25 of 40");
  books.take(Kind::gradients, 10);
  CHECK(peaks() == "10 30 35 of 47");
  books.restart_peaks();
  CHECK(peaks() == "10 2 35 of 47");
  books.take(Kind::gradients, -35);
  books.restart_peaks();
  books.take(Kind::activations, 5);
  CHECK(peaks() == "10 7 0 of 17");
}

TEST_CASE("memory that the system does not give is refused, with the number, and not booked") {
  const Changes changes(Kind::data);
  constexpr std::int64_t beyond_all_addresses = 1152921504606846976;  // 2^60
  const std::string none = "the system gave no 1152921504606846976 bytes ";
  check_refused(ExitCode::resources, {none + "for data", "use a smaller --data or --batch"},
                [] { Buffer(Device::cpu, Kind::data, beyond_all_addresses, true); });
  for (const auto& [device, memory] :
       {std::pair{Device::host, Memory::own}, {Device::cpu, Memory::staging}}) {
    check_refused(ExitCode::resources, {none + "for data"},
                  [&] { Buffer(device, Kind::data, beyond_all_addresses, true, memory); });
  }
  check_refused(ExitCode::resources, {none + "of host memory"},
                [] { HostBuffer(Device::cpu, beyond_all_addresses); });
  CHECK(changes.figures() == "0 0 0 0, 0 0 0 0");
}

TEST_CASE("a tensor is zero, aligned to 64 bytes, and in its place's books as long as it lives") {
  const std::size_t held = Tensor::held.size();
  for (const Device device : {Device::cpu, Device::host}) {
    for (const Dtype dtype : dtypes) {
      for (const std::int64_t size : {0, 1, 33, 100000, 1 << 20}) {  // 2 MiB too
        const std::int64_t bytes = size * bytes_of(dtype);
        const bool on_host = place_of(device) == Place::host;
        const Change change(Kind::parameters, place_of(device));
        const Change other(Kind::parameters, on_host ? Place::device : Place::host);
        {
          const Tensor tensor(device, Kind::parameters, dtype, size);
          const View view = tensor.view();
          CHECK(words(view) == tuple(size, size, dtype, device, -1, 0));
          CHECK(view.bytes() == bytes);
          CHECK(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
          CHECK(std::count(view.data, view.data + bytes, std::byte{0}) == bytes);
          CHECK(change.figures() == figures({bytes, bytes, bytes, bytes}));
          CHECK(Tensor::held.size() == held + (size > 0));
          if (size > 0) fill(view, 1);  // so the next gets used memory
        }
        CHECK(change.figures() == figures({0, 0, 0, bytes}));
        CHECK(other.figures() == "0 0 0 0");
        CHECK(Tensor::held.size() == held);
      }
    }
  }
}

TEST_CASE("a moved buffer is booked once and given back once, staging memory on the host") {
  for (const Memory memory : {Memory::own, Memory::staging}) {
    const Changes changes(Kind::workspace);
    const std::int64_t allocations = allocations_so_far;
    const auto check = [&](const std::string& figures) {
      const bool staging = memory == Memory::staging;
      CHECK(changes.figures() == (staging ? "0 0 0 0, " + figures : figures + ", 0 0 0 0"));
    };
    {
      Buffer first(Device::cpu, Kind::workspace, 1000, true, memory);
      std::byte* const data = first.data();
      CHECK(std::count(data, data + 1000, std::byte{0}) == 1000);
      const Buffer second = std::move(first);
      CHECK(second.data() == data);
      CHECK(second.bytes() == 1000);
      CHECK(second.device() == (memory == Memory::staging ? Device::host : Device::cpu));
      CHECK(first.data() == nullptr);
      check("1000 1000 1000 1000");
    }
    check("0 0 0 1000");
    CHECK(allocations_so_far == allocations + 1);
  }
}

TEST_CASE("a scratch is reserved throughout, in use while booked, and keeps what it contains") {
  const Change change(Kind::activations);
  const Scratch scratch = scratch_of(100, Dtype::bf16);
  CHECK(change.figures() == "200 0 0 0");
  for (int times = 0; times < 2; ++times) {
    const Booking booking = scratch.book();
    const View view = booking.view();
    CHECK(words(view) == tuple(100, 100, Dtype::bf16, Device::cpu, -1, 0));
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
  const View view{tensor.view().data, 16, 10, Dtype::fp16, Device::cpu, 3, 100};
  for (const auto& [offset, count, used] :
       {tuple{0, 16, 10}, {0, 4, 4}, {8, 4, 2}, {10, 6, 0}, {12, 4, 0}, {16, 0, 0}}) {
    const View part = view.part(offset, count);
    CHECK(words(part) == tuple(count, used, Dtype::fp16, Device::cpu, 3, 100 + offset));
    if (count > 0) CHECK(element(part, 0) == static_cast<float>(offset));
  }
  CHECK(view.part(4, 8).part(2, 2).start == 106);
  for (const auto& [offset, count] : {std::pair{0, 17}, {16, 1}, {-1, 2}, {1, -1}}) {
    CHECK_THROWS_AS(view.part(offset, count), std::logic_error);
  }
}

TEST_CASE("layers are padded to equal shares and no further, and every element has one owner") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const std::int64_t quantum : {1, 3, 8}) check_layout(rank, ranks, quantum);
    }
  }
}

TEST_CASE("what makes no layout is refused") {
  for (const Sizes& none : {Sizes{}, {5, 0}, {-1}}) {
    CHECK_THROWS_AS(Layout(none, 0, 1), std::logic_error);
  }
  for (const auto& [rank, ranks] : {std::pair{1, 1}, {-1, 1}, {0, 0}}) {
    CHECK_THROWS_AS(Layout({5}, rank, ranks), std::logic_error);
  }
  CHECK_THROWS_AS(Layout({5}, 0, 1, 0), std::logic_error);
  const Layout layout({5, 6}, 0, 2);
  const Tensor full = tensor_of(layout.full_size()), shards = tensor_of(layout.shard_size());
  CHECK_THROWS_AS(layout.layer(shards, 0), std::logic_error);
  CHECK_THROWS_AS(layout.shard(full, 0), std::logic_error);
  const Tensor too_small = tensor_of(layout.largest_layer() - 1);
  CHECK_THROWS_AS(layout.layer_in(too_small.view(), 1), std::logic_error);
}
}  // namespace zero::test
