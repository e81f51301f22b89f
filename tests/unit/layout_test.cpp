// SPDX-License-Identifier: MIT
// The cut: every element has one owner, wherever the borders fall.
#include "memory/layout.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/unit/elements.hpp"

namespace zero::test {
namespace {
using Sizes = std::vector<std::int64_t>;

/// Odd sizes, sizes below the number of ranks, and sizes just beside a multiple of quantum * ranks.
const Sizes sizes{1, 2, 7, 8, 9, 13, 1000, 63, 64, 65, 127, 192, 193};
constexpr int most_ranks = 8;

Tensor tensor_of(std::int64_t size, Dtype dtype = Dtype::fp32) {
  return Tensor(Device::cpu, Kind::parameters, dtype, size);
}

/// How many elements each of `ranks` ranks owns of a single layer, padding not counted.
Sizes used_of_each(std::int64_t size, int ranks, std::int64_t quantum) {
  Sizes used;
  for (int rank = 0; rank < ranks; ++rank) {
    const Layout layout({size}, rank, ranks, quantum);
    used.push_back(layout.shard(tensor_of(layout.shard_size()), 0).used);
  }
  return used;
}

/// Marks what this rank owns of every layer, by global element number.
void mark_owned(int rank, int ranks, std::int64_t quantum, std::vector<int>& owners) {
  const Layout layout(sizes, rank, ranks, quantum);
  const Tensor shards = tensor_of(layout.shard_size());
  for (int l = 0; l < layout.layers(); ++l) {
    const View shard = layout.shard(shards, l);
    REQUIRE(shard.used <= shard.size);
    for (std::int64_t i = 0; i < shard.used; ++i) {
      REQUIRE(shard.start + i < sizes[l]);
      ++owners.at(layout.layer_start(l) + shard.start + i);
    }
  }
}
}  // namespace

TEST_CASE("every element of every layer has exactly one owner") {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    for (const std::int64_t quantum : {1, 3, 8}) {
      INFO(ranks, " ranks, quantum ", quantum);
      std::vector<int> owners(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
      for (int rank = 0; rank < ranks; ++rank) mark_owned(rank, ranks, quantum, owners);
      CHECK(owners == std::vector<int>(owners.size(), 1));
    }
  }
}

TEST_CASE("a layer is padded to the next multiple of quantum x ranks, and no further") {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    const Layout layout(sizes, 0, ranks);
    std::int64_t parameters = 0, full = 0, largest = 0;
    for (int l = 0; l < layout.layers(); ++l) {
      const std::int64_t padded = layout.layer_size(l);
      CHECK(padded % (8 * ranks) == 0);
      CHECK(padded >= sizes[l]);
      CHECK(padded - sizes[l] < 8 * ranks);
      CHECK(layout.layer_start(l) == parameters);
      parameters += sizes[l];
      full += padded;
      largest = std::max(largest, padded);
    }
    CHECK(layout.ranks() == ranks);
    CHECK(layout.layers() == static_cast<int>(sizes.size()));
    CHECK(layout.parameters() == parameters);
    CHECK(layout.full_size() == full);
    CHECK(layout.shard_size() * ranks == full);
    CHECK(layout.largest_layer() == largest);
  }
}

TEST_CASE("the worked example: 12, 13 and 2 parameters on 3 ranks") {
  CHECK(used_of_each(12, 3, 1) == Sizes{4, 4, 4});
  CHECK(used_of_each(13, 3, 1) == Sizes{5, 5, 3});
  CHECK(used_of_each(2, 3, 1) == Sizes{1, 1, 0});
  CHECK(Layout({12}, 2, 3, 1).shard_start(0) == 8);
  CHECK(Layout({13}, 1, 3, 1).full_size() == 15);
  CHECK(Layout({2}, 2, 3, 1).shard_size() == 1);
}

TEST_CASE("with more ranks than quanta the later shards are empty, not missing") {
  CHECK(used_of_each(13, 8, 8) == Sizes{8, 5, 0, 0, 0, 0, 0, 0});
  const Layout last({13}, 7, 8);
  CHECK(last.shard_start(0) == 56);
  CHECK(last.shard_size() == 8);
}

TEST_CASE("the views of a layer lie where its shards lie, and say which layer and from where on") {
  const Sizes three{13, 30, 2}, padded{24, 48, 24};
  for (int rank = 0; rank < 3; ++rank) {
    const Layout layout(three, rank, 3);
    const Tensor full = tensor_of(layout.full_size());
    const Tensor shards = tensor_of(layout.shard_size());
    const Tensor buffer = tensor_of(layout.largest_layer());
    for (const Tensor* each : {&full, &shards, &buffer}) {
      fill(each->view(), [](std::int64_t i) { return i; });
    }
    std::int64_t before = 0;
    for (int l = 0; l < 3; before += padded[l++]) {
      const auto check = [&](View view, std::int64_t start, std::int64_t size, std::int64_t place) {
        CHECK(view.layer == l);
        CHECK(view.start == start);
        CHECK(view.size == size);
        CHECK(view.used == std::clamp<std::int64_t>(three[l] - start, 0, size));
        CHECK(element(view, 0) == static_cast<float>(place));
      };
      const std::int64_t share = padded[l] / 3, first = rank * share;
      CHECK(layout.shard_start(l) == first);
      const View layer = layout.layer(full, l);
      const View slot = layout.layer_in(buffer.view(), l);
      check(layer, 0, padded[l], before);
      check(slot, 0, padded[l], 0);
      check(layout.shard(shards, l), first, share, before / 3);
      check(layout.shard_of(layer), first, share, before + first);
      check(layout.shard_of(slot), first, share, first);
      check(layer.part(5, 2), 5, 2, before + 5);
      check(layout.shard(shards, l).part(3, 4), first + 3, 4, before / 3 + 3);
    }
  }
}

TEST_CASE("a buffer that a layer does not fit into is refused") {
  const Layout layout({13, 100}, 0, 2);
  const Tensor too_small = tensor_of(layout.largest_layer() - 1);
  CHECK(layout.layer_in(too_small.view(), 0).used == 13);
  CHECK_THROWS_AS(layout.layer_in(too_small.view(), 1), std::logic_error);
}

TEST_CASE("shards stay 16-byte aligned in every dtype") {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    const Layout layout(sizes, ranks - 1, ranks);
    for (const Dtype dtype : dtypes) {
      const Tensor full = tensor_of(layout.full_size(), dtype);
      const Tensor shards = tensor_of(layout.shard_size(), dtype);
      for (int l = 0; l < layout.layers(); ++l) {
        const View mine = layout.shard_of(layout.layer(full, l));
        CHECK(reinterpret_cast<std::uintptr_t>(mine.data) % 16 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(layout.shard(shards, l).data) % 16 == 0);
      }
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
  const Tensor shards = tensor_of(layout.shard_size());
  const Tensor full = tensor_of(layout.full_size());
  CHECK_THROWS_AS(layout.layer(shards, 0), std::logic_error);
  CHECK_THROWS_AS(layout.shard(full, 0), std::logic_error);
}
}  // namespace zero::test
