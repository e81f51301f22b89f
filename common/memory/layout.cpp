// SPDX-License-Identifier: MIT
#include "memory/layout.hpp"

#include <algorithm>

#include "memory/error.hpp"

namespace zero {

Layout::Layout(std::vector<std::int64_t> sizes, int rank, int ranks, std::int64_t quantum)
    : sizes_(std::move(sizes)),
      starts_{0},
      padded_starts_{0},
      rank_(rank),
      ranks_(ranks) {
  expect(!sizes_.empty(), "a layout needs at least one layer");
  expect(0 <= rank && rank < ranks && quantum > 0, "0 <= rank < ranks and quantum > 0");
  for (const std::int64_t size : sizes_) {
    expect(size > 0, "a layer needs at least one element");
    const std::int64_t unit = quantum * ranks;
    const std::int64_t padded = (size + unit - 1) / unit * unit;
    starts_.push_back(starts_.back() + size);
    padded_starts_.push_back(padded_starts_.back() + padded);
    largest_ = std::max(largest_, padded);
  }
}

View Layout::layer(const Tensor& full, int l) const {
  expect(full.size() == this->full_size(), "layer() takes a tensor of full_size() elements");
  return layer_in(full.view().part(padded_starts_[l], layer_size(l)), l);
}

View Layout::shard(const Tensor& shards, int l) const {
  expect(shards.size() == shard_size(), "shard_size() takes a tensor of shard_size() elements");
  View part = shards.view().part(padded_starts_[l] / ranks_, layer_size(l) / ranks_);
  part.layer = l;
  part.start = shard_start(l);
  part.used = std::clamp<std::int64_t>(sizes_[l] - shard_start(l), 0, part.size);
  return part;
}

View Layout::shard_of(View layer) const {
  const std::int64_t size = layer.size / ranks_;
  return layer.part(rank_ * size, size);
}

View Layout::layer_in(View buffer, int l) const {
  View view = buffer.part(0, layer_size(l));
  view.layer = l;
  view.start = 0;
  view.used = sizes_[l];
  return view;
}

}  // namespace zero
