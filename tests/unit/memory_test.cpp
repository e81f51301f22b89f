// SPDX-License-Identifier: MIT
// Tests how layers are cut into shards, so that each element has one owner; tensors, borrowed
// buffers, files on a disk, and memory that the system refuses. How much memory a trainer takes is
// tested in tests/ranks/accounts_test.cpp.
#include <filesystem>
#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using std::tuple;
using Sizes = std::vector<std::int64_t>;

/// The layers' elements: odd numbers, numbers below the number of ranks, and numbers just beside a
/// multiple of alignment * ranks.
const Sizes sizes{1, 2, 7, 8, 9, 13, 1000, 63, 64, 65, 127, 192, 193};

auto describe(ConstView view) {
  return tuple(view.size, view.used, view.dtype, view.device, view.layer, view.start);
}

/// Checks a rank's layout: its part of a layer begins where the part of the rank before ends.
/// Checks that Replicated, Sharded and LayerBuffer return views of the layout's sizes and places.
void check_layout(int rank, int ranks, std::int64_t alignment) {
  INFO("rank ", rank, " of ", ranks, ", alignment ", alignment);
  const Layout layout(sizes, rank, ranks, alignment);
  Replicated whole(cpu(), layout, State::parameters, Dtype::fp32);
  Sharded shards(cpu(), layout, State::gradients, Dtype::fp32);
  LayerBuffer room(cpu(), layout, State::parameters, Dtype::fp32);
  for (const View& all : {whole.view(), shards.view()}) fill(all, std::identity());
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
      CHECK(describe(view) == tuple(size, used, Dtype::fp32, &cpu(), l, start));
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

TEST_CASE("memory that the system refuses is told with its size, and not counted") {
  const auto cpu = make_cpu();
  constexpr std::int64_t beyond_all_addresses = 1152921504606846976;  // 2^60
  const std::string none = "the system gave no 1152921504606846976 bytes ";
  for (Device* device : {cpu.get(), &cpu->host()}) {
    for (const Memory memory : {Memory::ordinary, Memory::pinned}) {
      check_refused(ExitCode::resources, {none + "for data", "use a smaller --data or --batch"},
                    [&] { Buffer(*device, Kind::data, beyond_all_addresses, true, memory); });
    }
    check_refused(ExitCode::resources, {none + "of host memory"},
                  [&] { Buffer(*device, beyond_all_addresses); });
    CHECK(device->ledger().reserved() == 0);
  }
}

TEST_CASE("a tensor is zero and aligned to 64 bytes") {
  for (const std::int64_t size : {1, 33, 100000, 1 << 20}) {  // from 2 MiB on, huge pages
    for (int times = 0; times < 2; ++times) {
      Tensor tensor(cpu(), Kind::data, Dtype::bf16, size);
      CHECK(reinterpret_cast<std::uintptr_t>(tensor.view().data) % 64 == 0);
      CHECK(values(tensor.view()) == std::vector<float>(size));
      fill(tensor.view(), 1);  // the next tensor may get this memory
    }
  }
}

TEST_CASE("a buffer that several borrow counts once, until the last gives it back") {
  const auto cpu = make_cpu();
  const auto in_use = [&] { return cpu->ledger().of(Kind::activations).now; };
  Scratch scratch(*cpu, Kind::activations, Dtype::fp32, 10);
  Borrowed one = scratch.borrow(), other = scratch.borrow();
  one = scratch.borrow();
  other.give_back();
  other.give_back();
  CHECK(in_use() == 40);
  Borrowed moved = std::move(one);
  one.give_back();  // has nothing to give back; NOLINT(bugprone-use-after-move)
  CHECK(in_use() == 40);
  moved.give_back();
  CHECK(in_use() == 0);
  CHECK_THROWS_AS(moved.view(), std::logic_error);
}

TEST_CASE("a disk's tensor returns what was written, and closes its file at its end") {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  const auto machine = make_cpu();
  {
    Tensor file(machine->at(Place::disk), Kind::optimizer, Dtype::fp32, 2);
    float out[] = {3, 4}, in[2] = {};
    machine->at(Place::disk).copy(file.view().data, out, sizeof out);
    machine->at(Place::disk).copy(in, file.view().data, sizeof in);
    CHECK((in[0] == 3 && in[1] == 4));
  }
  CHECK(open_files() == before);
}

TEST_CASE("a part of a view knows its place, and how much of it is no padding") {
  Tensor tensor(cpu(), Kind::data, Dtype::fp16, 16);
  fill(tensor.view(), std::identity());
  const View view{tensor.view().data, 16, 10, Dtype::fp16, &cpu(), 3, 100};
  for (const auto& [offset, count, used] :
       {tuple{0, 16, 10}, {0, 4, 4}, {8, 4, 2}, {10, 6, 0}, {12, 4, 0}, {16, 0, 0}}) {
    const View part = view.part(offset, count);
    CHECK(describe(part) == tuple(count, used, Dtype::fp16, &cpu(), 3, 100 + offset));
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

TEST_CASE("sizes and ranks that make no layout are refused") {
  for (const Sizes& none : {Sizes{}, {5, 0}, {-1}}) {
    CHECK_THROWS_AS(Layout(none, 0, 1), std::logic_error);
  }
  for (const auto& [rank, ranks, alignment] : {tuple{1, 1, 8}, {-1, 1, 8}, {0, 0, 8}, {0, 1, 0}}) {
    CHECK_THROWS_AS(Layout({5}, rank, ranks, alignment), std::logic_error);
  }
}
}  // namespace zero::test
