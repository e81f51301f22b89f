// SPDX-License-Identifier: MIT
// The cut: every element has one owner, wherever the borders fall.
#include "memory/layout.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/unit/elements.hpp"

namespace zero::test {

namespace {

/// Odd sizes, sizes below the number of ranks, and sizes just beside a multiple of quantum * ranks.
const std::vector<std::int64_t> sizes{1, 2, 7, 8, 9, 13, 1000, 63, 64, 65, 127, 192, 193};
constexpr int most_ranks = 8;

Tensor tensor_of(std::int64_t size) {
  return Tensor(Kind::parameters, Dtype::fp32, size);
}

/// How many elements each of `ranks` ranks owns of a single layer, padding not counted.
std::vector<std::int64_t> used_of_each(std::int64_t size, int ranks, std::int64_t quantum) {
  std::vector<std::int64_t> used;
  for (int rank = 0; rank < ranks; ++rank) {
    const Layout layout({size}, rank, ranks, quantum);
    const Tensor shards = tensor_of(layout.shard_size());
    used.push_back(layout.shard(shards, 0).used);
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
      const std::int64_t within = layout.shard_start(l) + i;
      REQUIRE(within < sizes[l]);
      ++owners.at(layout.layer_start(l) + within);
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
  using Used = std::vector<std::int64_t>;
  CHECK(used_of_each(12, 3, 1) == Used{4, 4, 4});
  CHECK(used_of_each(13, 3, 1) == Used{5, 5, 3});
  CHECK(used_of_each(2, 3, 1) == Used{1, 1, 0});
  CHECK(Layout({12}, 2, 3, 1).shard_start(0) == 8);
  CHECK(Layout({13}, 1, 3, 1).full_size() == 15);
  CHECK(Layout({2}, 2, 3, 1).shard_size() == 1);
}

TEST_CASE("with more ranks than quanta the later shards are empty, not missing") {
  using Used = std::vector<std::int64_t>;
  CHECK(used_of_each(13, 8, 8) == Used{8, 5, 0, 0, 0, 0, 0, 0});
  const Layout last({13}, 7, 8);
  CHECK(last.shard_start(0) == 56);
  CHECK(last.shard_size() == 8);
}

TEST_CASE("the views of a layer lie where its shards lie in the whole") {
  for (int rank = 0; rank < 3; ++rank) {
    const Layout layout({13, 30, 2}, rank, 3);
    const Tensor full = tensor_of(layout.full_size());
    const Tensor shards = tensor_of(layout.shard_size());
    fill(full.view(), [](std::int64_t i) { return i; });
    fill(shards.view(), [](std::int64_t i) { return -i; });
    std::int64_t padded_before = 0;
    for (int l = 0; l < layout.layers(); ++l) {
      const View layer = layout.layer(full, l);
      const View mine = layout.shard_of(layer);
      const View shard = layout.shard(shards, l);
      CHECK(layer.size == layout.layer_size(l));
      CHECK(layer.used == (std::vector<std::int64_t>{13, 30, 2})[l]);
      CHECK(element(layer, 0) == padded_before);
      CHECK(mine.size == layer.size / 3);
      CHECK(element(mine, 0) == padded_before + layout.shard_start(l));
      CHECK(shard.size == mine.size);
      CHECK(shard.used == mine.used);
      CHECK(element(shard, 0) == -padded_before / 3);
      padded_before += layer.size;
    }
  }
}

TEST_CASE("a buffer for the largest layer serves for each") {
  const Layout layout({13, 100}, 0, 2);
  const Tensor buffer = tensor_of(layout.largest_layer());
  const View small = layout.layer_in(buffer.view(), 0);
  CHECK(small.data == buffer.view().data);
  CHECK(small.size == 16);
  CHECK(small.used == 13);
  CHECK(layout.layer_in(buffer.view(), 1).used == 100);
  const Tensor too_small = tensor_of(layout.largest_layer() - 1);
  CHECK_THROWS_AS(layout.layer_in(too_small.view(), 1), std::logic_error);
}

TEST_CASE("shards stay 16-byte aligned in every dtype") {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    const Layout layout(sizes, ranks - 1, ranks);
    for (const Dtype dtype : dtypes) {
      const Tensor full(Kind::parameters, dtype, layout.full_size());
      const Tensor shards(Kind::parameters, dtype, layout.shard_size());
      for (int l = 0; l < layout.layers(); ++l) {
        const View mine = layout.shard_of(layout.layer(full, l));
        CHECK(reinterpret_cast<std::uintptr_t>(mine.data) % 16 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(layout.shard(shards, l).data) % 16 == 0);
      }
    }
  }
}

TEST_CASE("what makes no layout is refused") {
  CHECK_THROWS_AS(Layout({}, 0, 1), std::logic_error);
  CHECK_THROWS_AS(Layout({5, 0}, 0, 1), std::logic_error);
  CHECK_THROWS_AS(Layout({-1}, 0, 1), std::logic_error);
  CHECK_THROWS_AS(Layout({5}, 1, 1), std::logic_error);
  CHECK_THROWS_AS(Layout({5}, -1, 1), std::logic_error);
  CHECK_THROWS_AS(Layout({5}, 0, 0), std::logic_error);
  CHECK_THROWS_AS(Layout({5}, 0, 1, 0), std::logic_error);
  const Layout layout({5, 6}, 0, 2);
  const Tensor shards = tensor_of(layout.shard_size());
  const Tensor full = tensor_of(layout.full_size());
  CHECK_THROWS_AS(layout.layer(shards, 0), std::logic_error);
  CHECK_THROWS_AS(layout.shard(full, 0), std::logic_error);
}

}  // namespace zero::test
