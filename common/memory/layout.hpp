// SPDX-License-Identifier: MIT
// Divides parameters among ranks: each layer is padded and cut into one equal part per rank.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/error.hpp"

namespace zero {
/// Computes sizes and positions. The tensors of a layer form one flat vector (a linear layer's
/// weight, out x in, row-major, then its bias), padded to a multiple of alignment * ranks. Rank r
/// owns the r-th equal part of every layer. All sizes are in elements, and include padding, except
/// parameters(), used_size() and first_parameter().
class Layout {
 public:
  /// sizes: elements of each layer. Throws std::logic_error if there is none, or one is < 1. The
  /// default alignment makes every part 16-byte aligned in every dtype.
  Layout(std::vector<std::int64_t> sizes, int rank, int ranks, std::int64_t alignment = 8)
      : sizes_(std::move(sizes)), rank_(rank), ranks_(ranks) {
    expect(!sizes_.empty(), "a layout needs at least one layer");
    expect(0 <= rank && rank < ranks && alignment > 0, "0 <= rank < ranks and alignment > 0");
    for (const std::int64_t size : sizes_) {
      expect(size > 0, "a layer needs at least one element");
      const std::int64_t unit = alignment * ranks;
      const std::int64_t padded = (size + unit - 1) / unit * unit;
      starts_.push_back(starts_.back() + size);
      padded_starts_.push_back(padded_starts_.back() + padded);
      largest_ = std::max(largest_, padded);
    }
  }

  int ranks() const { return ranks_; }
  int layers() const { return static_cast<int>(sizes_.size()); }
  std::int64_t parameters() const { return starts_.back(); }
  /// Returns the size of all layers, which a Replicated has.
  std::int64_t full_size() const { return padded_starts_.back(); }
  /// Returns the size of this rank's parts of all layers, which a Sharded has.
  std::int64_t shard_size() const { return full_size() / ranks_; }
  std::int64_t largest_layer() const { return largest_; }
  std::int64_t layer_size(int l) const { return padded_starts_[l + 1] - padded_starts_[l]; }
  std::int64_t used_size(int l) const { return sizes_[l]; }
  /// Returns the position of layer l's first element among all layers.
  std::int64_t layer_offset(int l) const { return padded_starts_[l]; }
  /// Returns the number of layer l's first parameter, counted over all layers without padding.
  std::int64_t first_parameter(int l) const { return starts_[l]; }
  std::int64_t shard_start(int l) const { return rank_ * shard_size(l); }  // in layer l
  std::int64_t shard_size(int l) const { return layer_size(l) / ranks_; }

 private:
  std::vector<std::int64_t> sizes_;  // [l]: without padding
  std::vector<std::int64_t> starts_{0};  // [l]: sum of the sizes before layer l; [layers()]: of all
  std::vector<std::int64_t> padded_starts_{0};  // the same with padding
  std::int64_t largest_ = 0;
  int rank_;
  int ranks_;
};
}  // namespace zero
