// SPDX-License-Identifier: MIT
// Memory and its ledger: what is reserved, held, borrowed, and how high the mountain was. And the
// cut of the parameters: every element has one owner, wherever the borders fall.
#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using std::tuple;
using Sizes = std::vector<std::int64_t>;

/// Odd sizes, sizes below the number of ranks, and sizes just beside a multiple of alignment *
/// ranks.
const Sizes sizes{1, 2, 7, 8, 9, 13, 1000, 63, 64, 65, 127, 192, 193};

/// "reserved resident now peak", in bytes.
std::string figures(const Device& device, Kind kind) {
  const KindBytes& of = device.ledger.of(kind);
  return fmt::format("{} {} {} {}", of.reserved, of.resident, of.now, of.peak);
}

auto words(View view) {
  return tuple(view.size, view.used, view.dtype, view.device, view.layer, view.start);
}

/// The cut as one rank has it: its part of a layer begins where that of the rank before ends; and
/// the views that Replicated, Sharded and LayerBuffer make of it.
void check_layout(int rank, int ranks, std::int64_t alignment) {
  INFO("rank ", rank, " of ", ranks, ", alignment ", alignment);
  const Layout layout(sizes, rank, ranks, alignment);
  const Replicated whole(cpu(), layout, State::parameters, Dtype::fp32);
  const Sharded shards(cpu(), layout, State::gradients, Dtype::fp32);
  const LayerBuffer room(cpu(), layout, State::parameters, Dtype::fp32);
  for (const View all : {whole.view(), shards.view()}) fill(all, std::identity());
  std::int64_t parameters = 0, before = 0, largest = 0;
  for (int l = 0; l < layout.layers(); ++l) {
    const std::int64_t padded = layout.layer_size(l), share = padded / ranks, first = rank * share;
    CHECK(padded % (alignment * ranks) == 0);
    CHECK(padded >= sizes[l]);
    CHECK(padded - sizes[l] < alignment * ranks);
    CHECK(layout.used_size(l) == sizes[l]);
    CHECK(layout.first_parameter(l) == parameters);
    CHECK(layout.layer_offset(l) == before);
    const auto check = [&](View view, std::int64_t start, std::int64_t size, std::int64_t place) {
      const auto used = std::clamp<std::int64_t>(sizes[l] - start, 0, size);
      CHECK(words(view) == tuple(size, used, Dtype::fp32, &cpu(), l, start));
      if (place >= 0) CHECK(element(view, 0) == static_cast<float>(place));
    };
    check(whole.layer(l), 0, padded, before);
    check(whole.shard(l), first, share, before + first);
    check(shards.shard(l), first, share, before / ranks);
    check(room.borrow(l), 0, padded, -1);
    parameters += sizes[l];
    before += padded;
    largest = std::max(largest, padded);
  }
  CHECK(tuple(layout.ranks(), layout.layers()) == tuple(ranks, std::ssize(sizes)));
  CHECK(tuple(layout.parameters(), layout.largest_layer()) == tuple(parameters, largest));
  CHECK(tuple(whole.view().size, shards.view().size * ranks) == tuple(before, before));
}
}  // namespace

TEST_CASE("the peak of the total is not the sum of the peaks; restarted, both begin at now") {
  Ledger ledger;
  const auto peaks = [&] {
    return tuple(ledger.of(Kind::parameters).peak, ledger.of(Kind::activations).peak,
                 ledger.peak_of_total());
  };
  ledger.reserve(Kind::parameters, 10, true);
  ledger.book(Kind::activations, 30);
  ledger.book(Kind::activations, -28);
  CHECK(peaks() == tuple(10, 30, 40));
  ledger.book(Kind::parameters, 35);
  CHECK(peaks() == tuple(45, 30, 47));
  ledger.book(Kind::parameters, -35);
  ledger.restart_peaks();
  CHECK(peaks() == tuple(10, 2, 12));
  ledger.book(Kind::activations, 5);
  CHECK(peaks() == tuple(10, 7, 17));
}

TEST_CASE("memory that the system does not give is refused, with the number, and not booked") {
  const auto cpu = make_cpu();
  constexpr std::int64_t beyond_all_addresses = 1152921504606846976;  // 2^60
  const std::string none = "the system gave no 1152921504606846976 bytes ";
  for (Device* device : {cpu.get(), &cpu->host()}) {
    for (const Memory memory : {Memory::own, Memory::page_locked}) {
      check_refused(ExitCode::resources, {none + "for data", "use a smaller --data or --batch"},
                    [&] { Buffer(*device, Kind::data, beyond_all_addresses, true, memory); });
    }
    check_refused(ExitCode::resources, {none + "of host memory"},
                  [&] { Buffer(*device, beyond_all_addresses); });
    CHECK(device->ledger.reserved() == 0);
    CHECK(device->ledger.peak_of_total() == 0);
  }
}

TEST_CASE("a tensor is zero, aligned to 64 bytes, and in its device's ledger as long as it lives") {
  for (const Place place : every<Place>) {
    for (const Dtype dtype : dtypes) {
      for (const std::int64_t size : {0, 1, 33, 100000, 1 << 20}) {  // 2 MiB too
        const auto cpu = make_cpu();
        const bool there = place == Place::host;
        Device &device = there ? cpu->host() : *cpu, &other = there ? *cpu : cpu->host();
        const std::int64_t bytes = size * bytes_of(dtype);
        {
          const Tensor tensor(device, Kind::parameters, dtype, size);
          const View view = tensor.view();
          CHECK(words(view) == tuple(size, size, dtype, &device, -1, 0));
          CHECK(tuple(view.bytes(), view.place()) == tuple(bytes, place));
          CHECK(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0);
          CHECK(std::count(view.data, view.data + bytes, std::byte{0}) == bytes);
          CHECK(figures(device, Kind::parameters) == fmt::format("{0} {0} {0} {0}", bytes));
          if (size > 0) fill(view, 1);  // so the next gets used memory
        }
        CHECK(figures(device, Kind::parameters) == fmt::format("0 0 0 {}", bytes));
        CHECK(figures(other, Kind::parameters) == "0 0 0 0");
      }
    }
  }
}

TEST_CASE("a moved buffer is booked once and given back once; one may be in no ledger") {
  for (const Memory memory : {Memory::own, Memory::page_locked}) {
    const auto cpu = make_cpu();
    {
      const Buffer unbooked(*cpu, 50);
      Buffer first(*cpu, Kind::workspace, 1000, true, memory);
      std::byte* const data = first.data();
      CHECK(std::count(data, data + 1000, std::byte{0}) == 1000);
      const Buffer second = std::move(first);
      CHECK(tuple(second.data(), second.bytes(), &second.device()) == tuple(data, 1000, cpu.get()));
      CHECK(first.data() == nullptr);  // NOLINT(bugprone-use-after-move)
      CHECK(figures(*cpu, Kind::workspace) == "1000 1000 1000 1000");
      CHECK(cpu->ledger.reserved() == 1000);
    }
    CHECK(figures(*cpu, Kind::workspace) == "0 0 0 1000");
    CHECK(cpu->allocations == 2);
  }
}

TEST_CASE("a scratch is reserved throughout, in use while borrowed, and keeps what it contains") {
  const auto cpu = make_cpu();
  const Scratch scratch(*cpu, Kind::activations, Dtype::bf16, 100);
  CHECK(figures(*cpu, Kind::activations) == "200 0 0 0");
  for (int times = 0; times < 2; ++times) {
    const Borrowed borrowed = scratch.borrow();
    CHECK(words(borrowed) == tuple(100, 100, Dtype::bf16, cpu.get(), -1, 0));
    CHECK(figures(*cpu, Kind::activations) == "200 0 200 200");
    if (times > 0) CHECK(element(borrowed, 3) == 4);
    fill(borrowed, [](std::int64_t i) { return i + 1; });
  }
  CHECK(figures(*cpu, Kind::activations) == "200 0 0 200");
}

TEST_CASE("a scratch that several borrow counts once, until the last of them gives it back, once") {
  const auto cpu = make_cpu();
  const auto in_use = [&] { return cpu->ledger.of(Kind::activations).now; };
  const Scratch small(*cpu, Kind::activations, Dtype::fp32, 10);
  const Scratch large(*cpu, Kind::activations, Dtype::fp32, 100);
  Borrowed borrowed = small.borrow(), other = small.borrow();
  borrowed = small.borrow();
  Borrowed& same = borrowed;
  borrowed = std::move(same);
  CHECK(borrowed.view().size == 10);
  CHECK(in_use() == 40);
  borrowed = large.borrow();
  CHECK(in_use() == 440);
  Borrowed moved = std::move(borrowed);
  borrowed.give_back();  // has nothing any more; NOLINT(bugprone-use-after-move)
  CHECK(in_use() == 440);
  for (int times = 0; times < 2; ++times) {
    other.give_back();
    CHECK(in_use() == 400);
  }
  moved = Borrowed();
  CHECK(in_use() == 0);
  for (const Borrowed* each : {&borrowed, &other, &moved}) {
    CHECK_THROWS_AS(each->view(), std::logic_error);
  }
}

TEST_CASE("a part of a view knows where it lies and how much of it is real") {
  const Tensor tensor(cpu(), Kind::data, Dtype::fp16, 16);
  fill(tensor.view(), std::identity());
  const View view{tensor.view().data, 16, 10, Dtype::fp16, &cpu(), 3, 100};
  for (const auto& [offset, count, used] :
       {tuple{0, 16, 10}, {0, 4, 4}, {8, 4, 2}, {10, 6, 0}, {12, 4, 0}, {16, 0, 0}}) {
    const View part = view.part(offset, count);
    CHECK(words(part) == tuple(count, used, Dtype::fp16, &cpu(), 3, 100 + offset));
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
      for (const std::int64_t alignment : {1, 3, 8}) check_layout(rank, ranks, alignment);
    }
  }
}

TEST_CASE("what is held is listed as long as it lives, and booked by what it is") {
  const auto device = make_cpu();
  Device &cpu = *device, &host = cpu.host();
  const Layout layout({5, 20}, 1, 2);  // 16 + 32 elements
  using Holdings = std::vector<const Holding*>;
  const auto momentum = std::make_unique<Sharded>(cpu, layout, State::momentum, Dtype::fp32);
  {
    const Replicated params(cpu, layout, State::parameters, Dtype::bf16);
    const Sharded staged(host, layout, State::staged, Dtype::bf16, Memory::page_locked);
    const Optional<Replicated> none(false, cpu, layout, State::master, Dtype::fp32);
    const Optional<Sharded> master(true, cpu, layout, State::master, Dtype::fp32);
    const LayerBuffer room(cpu, layout, State::gradients, Dtype::bf16);
    CHECK(!none.has_value());
    CHECK(master->state == State::master);
    CHECK(cpu.holdings == Holdings{momentum.get(), &params, &*master});
    CHECK(host.holdings == Holdings{&staged});
    CHECK(figures(cpu, Kind::optimizer) == "192 192 192 192");
    CHECK(figures(cpu, Kind::parameters) == "96 96 96 96");
    CHECK(figures(host, Kind::communication) == "48 48 48 48");
    Borrowed layer = room.borrow(0);  // smaller than the room, which counts
    CHECK(layer.view().size == 16);
    CHECK(figures(cpu, Kind::gradients) == "64 0 64 64");
  }
  CHECK(cpu.holdings == Holdings{momentum.get()});
  CHECK(host.holdings.empty());
}

TEST_CASE("what makes no layout is refused") {
  for (const Sizes& none : {Sizes{}, {5, 0}, {-1}}) {
    CHECK_THROWS_AS(Layout(none, 0, 1), std::logic_error);
  }
  for (const auto& [rank, ranks] : {std::pair{1, 1}, {-1, 1}, {0, 0}}) {
    CHECK_THROWS_AS(Layout({5}, rank, ranks), std::logic_error);
  }
  CHECK_THROWS_AS(Layout({5}, 0, 1, 0), std::logic_error);
}
}  // namespace zero::test
