// SPDX-License-Identifier: MIT
// How the parameters are cut: layer by layer, each padded and divided into one shard a rank.
#pragma once
#include "memory/error.hpp"
#include "memory/tensor.hpp"

namespace zero {
/// Positions only, no memory. A layer's flat vector is its weight (out x in, row-major) and then
/// its bias, padded to a multiple of quantum * ranks; rank r owns the r-th equal part of every
/// layer. All sizes in elements.
class Layout {
 public:
  /// sizes: elements of each layer. Throws std::logic_error when there is none or one is < 1.
  /// The default quantum keeps every shard 16-byte aligned in every dtype.
  Layout(std::vector<std::int64_t> sizes, int rank, int ranks, std::int64_t quantum = 8)
      : sizes_(std::move(sizes)), rank_(rank), ranks_(ranks) {
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

  int ranks() const { return ranks_; }
  int layers() const { return static_cast<int>(sizes_.size()); }
  /// Of all layers, without padding.
  std::int64_t parameters() const { return starts_.back(); }
  /// Of all layers, with padding: what an unsharded tensor holds.
  std::int64_t full_size() const { return padded_starts_.back(); }
  /// This rank's part of all layers.
  std::int64_t shard_size() const { return full_size() / ranks_; }
  /// The largest layer, with padding.
  std::int64_t largest_layer() const { return largest_; }
  /// Layer l with padding.
  std::int64_t layer_size(int l) const { return padded_starts_[l + 1] - padded_starts_[l]; }
  /// The global number of layer l's first element: counted over all layers, without padding.
  std::int64_t layer_start(int l) const { return starts_[l]; }
  /// The position within layer l at which this rank's shard begins.
  std::int64_t shard_start(int l) const { return rank_ * (layer_size(l) / ranks_); }

  /// Layer l of a tensor of full_size() elements.
  View layer(const Tensor& full, int l) const { return layer(full.view(), l); }
  View layer(View full, int l) const {
    expect(full.size == full_size(), "layer() takes a tensor of full_size() elements");
    return layer_in(full.part(padded_starts_[l], layer_size(l)), l);
  }
  /// Layer l's shard in a tensor of shard_size() elements.
  View shard(const Tensor& shards, int l) const {
    expect(shards.size() == shard_size(), "shard() takes a tensor of shard_size() elements");
    View part = shards.view().part(padded_starts_[l] / ranks_, layer_size(l) / ranks_);
    part.layer = l;
    part.start = shard_start(l);
    part.used = std::clamp<std::int64_t>(sizes_[l] - part.start, 0, part.size);
    return part;
  }
  /// This rank's shard of a whole layer.
  View shard_of(View layer) const {
    const std::int64_t size = layer.size / ranks_;
    return layer.part(rank_ * size, size);
  }
  /// The beginning of a buffer of at least largest_layer() elements, as layer l.
  View layer_in(View buffer, int l) const {
    View view = buffer.part(0, layer_size(l));
    view.layer = l;
    view.start = 0;
    view.used = sizes_[l];
    return view;
  }

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> starts_{0};
  std::vector<std::int64_t> padded_starts_{0};
  std::int64_t largest_ = 0;
  int rank_;
  int ranks_;
};
}  // namespace zero
