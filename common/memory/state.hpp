// SPDX-License-Identifier: MIT
// A trainer's state. Each rank has all elements of a Replicated, and only its part of a Sharded.
#pragma once
#include <algorithm>
#include <optional>

#include "memory/call_site.hpp"
#include "memory/layout.hpp"
#include "memory/tensor.hpp"

namespace zero {
/// What a tensor is for. master: Adam's fp32 weights. staged: on the way between device and host.
enum class State { parameters, gradients, master, momentum, variance, staged };
template <>
inline constexpr std::array names_of<State>{"parameters", "gradients", "master",
                                            "momentum",   "variance",  "staged"};
constexpr Kind kind_of(State state) {
  constexpr By<State, Kind> kinds{Kind::parameters, Kind::gradients, Kind::optimizer,
                                  Kind::optimizer,  Kind::optimizer, Kind::communication};
  return kinds[state];
}

/// Returns the view, labelled as layer l's elements from `start` on: sets layer, start and used.
template <class Elements>
Elements part_of_layer(const Layout& layout, Elements elements, int l, std::int64_t start) {
  elements.layer = l;
  elements.start = start;
  elements.used = std::clamp<std::int64_t>(layout.used_size(l) - start, 0, elements.size);
  return elements;
}

/// Base of Replicated and Sharded. Its device's state_tensors() has it. The layout must outlive it.
class StateTensor {
 public:
  StateTensor(const StateTensor&) = delete;
  virtual ~StateTensor() { std::erase(view().device->state_tensors_, this); }

  View view() { return elements_.view(); }
  ConstView view() const { return elements_.view(); }
  /// local(): all elements of layer l that this rank stores. shard(): its 1/N of the layer.
  virtual View local(int l) = 0;
  virtual View shard(int l) = 0;

  const State state;

 protected:
  StateTensor(Device& device, const Layout& layout, State state, Dtype dtype, std::int64_t size,
              Memory memory, std::int64_t gaps = 0)  // size: elements; gaps: bytes (see Buffer)
      : state(state),
        layout_(layout),
        elements_(device, kind_of(state), dtype, size, memory, gaps) {
    device.state_tensors_.push_back(this);
  }
  /// Returns elements [offset, offset + size) of `all`: layer l's from position `start` on.
  template <class Elements>
  Elements part(Elements all, std::int64_t offset, std::int64_t size, int l,
                std::int64_t start) const {
    Elements elements = part_of_layer(layout_, all.part(offset, size), l, start);
    elements.name = name_of(state);
    return elements;
  }

  const Layout& layout_;

 private:
  Tensor elements_;
};

/// Holds all layers, whole, on every rank.
class Replicated : public StateTensor {
 public:
  Replicated(Device& device, const Layout& layout, State state, Dtype dtype)
      : StateTensor(device, layout, state, dtype, layout.full_size(), Memory::ordinary) {}

  View layer(int l) { return layer_of(view(), l); }
  ConstView layer(int l) const { return layer_of(view(), l); }
  View local(int l) override { return layer(l); }
  View shard(int l) override {
    return layer(l).part(layout_.shard_start(l), layout_.shard_size(l));
  }

 private:
  template <class Elements> Elements layer_of(Elements all, int l) const {
    return part(all, layout_.layer_offset(l), layout_.layer_size(l), l, 0);
  }
};

/// Holds this rank's part of every layer. On a disk the part of each layer begins at a page.
class Sharded : public StateTensor {
 public:
  Sharded(Device& device, const Layout& layout, State state, Dtype dtype,
          Memory memory = Memory::ordinary)
      : StateTensor(device, layout, state, dtype, layout.shard_size(), memory,
                    device.place == Place::disk ? layout.layers() * disk_page : 0) {}

  View local(int l) override { return shard(l); }
  View shard(int l) override { return shard_of(view(), l); }
  ConstView shard(int l) const { return shard_of(view(), l); }

 private:
  template <class Elements> Elements shard_of(Elements all, int l) const {
    const std::int64_t offset = layout_.layer_offset(l) / layout_.ranks();
    Elements elements = part(all, offset, layout_.shard_size(l), l, layout_.shard_start(l));
    if (elements.place() != Place::disk) return elements;
    // Add l pages, then round up to a page. Rounding adds less than a page, so no parts overlap.
    const std::int64_t in_page = offset * bytes_of(elements.dtype) % disk_page;
    elements.data += l * disk_page + (in_page == 0 ? 0 : disk_page - in_page);
    return elements;
  }
};

/// A Replicated or a Sharded that exists only if it is needed. Use it like a pointer.
template <class Holder> class Optional {
 public:
  Optional(bool needed, Device& device, const Layout& layout, State state,
           Dtype dtype = Dtype::fp32) {
    if (needed) holder_.emplace(device, layout, state, dtype);
  }
  explicit operator bool() const { return holder_.has_value(); }
  Holder* operator->() { return &*holder_; }
  const Holder* operator->() const { return &*holder_; }
  Holder& operator*() { return *holder_; }

 private:
  std::optional<Holder> holder_;
};

/// Lends memory for any one whole layer. Movable, because its Scratch stays where it is.
class LayerBuffer {
 public:
  LayerBuffer(Device& device, const Layout& layout, State state, Dtype dtype)
      : layout_(layout),
        scratch_(std::make_unique<Scratch>(device, kind_of(state), dtype, layout.largest_layer())),
        name_(name_of(state)),
        slot_(device.host().new_slot()) {}

  /// Lends memory for layer l. The elements keep the values that were left in them.
  Borrowed borrow(int l, CallSite = {}) {
    View room = part_of_layer(layout_, scratch_->all().part(0, layout_.layer_size(l)), l, 0);
    room.name = name_, room.slot = slot_;
    return scratch_->borrow(room);
  }

 private:
  const Layout& layout_;
  std::unique_ptr<Scratch> scratch_;
  const char* name_;
  int slot_;  // number of this memory, for traces
};
}  // namespace zero
