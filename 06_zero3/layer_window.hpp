// SPDX-License-Identifier: MIT
// Gathers layers ahead of use and reduce-scatters gradients, both on a second stream.
// The host only queues work on the streams compute and communication, and runs ahead of both. So
// this file has a wait wherever one stream must follow the other. A use is a layer's forward or
// backward. Each micro-batch uses layers 0 .. L-1, then L-1 .. 0. During a use, the layers of the
// next `prefetch` uses are gathered, each into a slot: memory for one whole layer.
#pragma once
#include "common.hpp"

namespace zero {
class LayerWindow {
 public:
  /// shards: this rank's parameters; call mark_ready() after each change. Declare the window last:
  /// its destructor waits for queued work, so everything that this work uses must outlive it.
  LayerWindow(const Card& card, const Options& options, const Layout& layout, Communicator& comm,
              Stream& compute, const Sharded& shards)
      : layers_(layout.layers()),
        compute_(compute),
        uses_(2 * layers_ * options.accumulate),
        comm_(comm),
        shards_(shards),
        ready_(layers_),
        communication_("communication", compute.device(), Stream::Mode::urgent) {
    const auto add = [&](std::vector<Slot>& slots, State state) {
      const int count = card.slots(kind_of(state), options.prefetch, layers_, options.accumulate);
      for (int i = 0; i < count; ++i) {
        slots.push_back({LayerBuffer(compute.device(), layout, state, options.dtype)});
      }
    };
    add(params_, State::parameters);
    add(grads_, State::gradients);
  }

  virtual ~LayerWindow() { synchronise(); }
  /// Waits for compute and mark_ready()'s events. communication_'s destructor waits for its work.
  void synchronise() {
    for (const Event& event : ready_) compute_.wait(event);
    compute_.synchronise();
  }

  /// Lends layer l, whole, to compute until reshard(l). Throws std::logic_error if l is not due.
  ConstView unshard(int l, CallSite = {}) {
    expect(next_use_ < uses_ && layer_of(next_use_) == l,
           "a step unshards 0 .. L-1, L-1 .. 0, reshards each, and ends with wait_for_gradients");
    const int end = std::min(next_use_ + static_cast<int>(params_.size()), uses_);
    while (next_gather_ < end) start_gather(next_gather_++);
    Slot& slot = slot_of(next_use_);
    compute_.wait(slot.filled);
    return slot.layer;
  }

  /// Frees l's slot behind compute's work so far. Throws std::logic_error unless l was lent last.
  void reshard(int l, CallSite = {}) {
    expect(next_use_ < next_gather_ && layer_of(next_use_) == l,
           "reshard takes the layer that unshard lent last");
    Slot& slot = slot_of(next_use_++);
    slot.layer.give_back();
    slot.free = compute_.record();
  }

  /// Lends memory with old values. Write l's gradient over them, then call reduce_scatter_mean().
  View borrow_grads(int l, CallSite = {}) {
    Slot& slot = grads_[next_grads_ % grads_.size()];
    slot.layer.give_back();  // the old gradient may still be being sent: wait() below protects it
    slot.layer = slot.memory.borrow(l);
    compute_.wait(slot.free);
    return slot.layer;
  }

  /// Averages `borrowed`, a gradient that compute writes, over the ranks. This rank's shard of the
  /// mean is written to `own`, or added to it. The returned event is complete when that is done.
  Event reduce_scatter_mean(View borrowed, View own, Write write, CallSite = {}) {
    Slot& slot = grads_[next_grads_++ % grads_.size()];
    communication_.wait(compute_.record());
    return reduce(slot, borrowed, own, write);
  }

  /// Ends a step's backward: what is queued on compute from here on runs after all reductions.
  /// It may read gradient shards, write parameter shards and use comm: no collective is under way.
  void wait_for_gradients(CallSite = {}) {
    for (Slot& slot : grads_) slot.layer.give_back();
    compute_.wait(communication_.record());
    next_use_ = next_gather_ = next_grads_ = 0;
  }

  /// Makes layer l's gathers wait for `event`, after which l's parameter shard is up to date.
  void mark_ready(int l, const Event& event) { ready_[l] = event; }

 protected:  // 08's HostWindow overrides gather() and reduce()
  struct Slot {
    LayerBuffer memory;
    Borrowed layer{};  // the layer that is in the memory
    Event filled{};  // complete when the gather has written the layer
    Event free{};  // complete when the slot's last reader, compute or reduce(), has ended
  };

  /// Queues, on communication, the gather that fills the slot with layer l.
  virtual void gather(Slot& slot, int l) {
    communication_.wait(slot.free);
    communication_.wait(ready_[l]);
    comm_.all_gather(communication_, shards_.shard(l), slot.layer);
  }

  /// Queues a gradient's reduce-scatter on communication. After slot.free, which it sets, the slot
  /// may be overwritten. The returned event is complete when `own` is written.
  virtual Event reduce(Slot& slot, View borrowed, View own, Write write) {
    comm_.reduce_scatter_mean(communication_, borrowed, own, write);
    return slot.free = communication_.record();
  }

 private:
  /// Returns the layer of a step's use number `use`, from 0.
  int layer_of(int use) const {
    const int place = use % (2 * layers_);
    return is_forward(use) ? place : 2 * layers_ - 1 - place;
  }
  bool is_forward(int use) const { return use % (2 * layers_) < layers_; }
  Slot& slot_of(int use) { return params_[use % params_.size()]; }

  void start_gather(int use) {
    const int l = layer_of(use);
    Slot& slot = slot_of(use);
    slot.layer = slot.memory.borrow(l);
    // Count traffic under the phase that uses the layer, not under the one that prefetches it.
    const PhaseScope phase(is_forward(use) ? Phase::forward : Phase::backward);
    gather(slot, l);
    slot.filled = communication_.record();
  }

  const int layers_;
  Stream& compute_;
  const int uses_;  // number of uses in a step: 2 x layers_ x micro-batches
  std::vector<Slot> params_;  // prefetch + 1 slots, but not more than uses_
  std::vector<Slot> grads_;  // at most two slots: compute fills one while the other is sent
  int next_use_ = 0, next_gather_ = 0, next_grads_ = 0;  // in this step; reshard() ends a use

 protected:
  Communicator& comm_;
  const Sharded& shards_;
  std::vector<Event> ready_;  // [l]: complete when layer l's shard is up to date
  Stream communication_;
};
}  // namespace zero
