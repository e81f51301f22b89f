// SPDX-License-Identifier: MIT
// The few whole layers that exist at a time, and the communication beside the computation.
//
// Two streams: compute, and communication, which carries the layers' messages. The host only puts
// work on them and runs ahead, so every order between the two is a wait written here.
// A step uses layers 0 .. L-1, L-1 .. 0, once a micro-batch; while one use computes, the gathers
// of the next `prefetch` uses are under way, each into a slot of its own.
#pragma once
#include "common.hpp"

namespace zero {
class LayerWindow {
 public:
  /// shards: this rank's parameters; whoever changes them says so by mark_ready(). All that is
  /// referred to must outlive the window.
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
  /// Waits for compute and for all that changes the shards: nobody uses them any more.
  void synchronise() {
    for (const Event& event : ready_) compute_.wait(event);
    compute_.synchronise();
  }

  /// Layer l whole, until reshard(l). Throws std::logic_error when it is not l's turn.
  ConstView unshard(int l, CallSite = {}) {
    expect(next_use_ < uses_ && layer_of(next_use_) == l,
           "it is another's turn: 0 .. L-1, L-1 .. 0, each released, then wait_for_gradients");
    const int last = std::min(next_use_ + static_cast<int>(params_.size()), uses_);
    while (next_gather_ < last) start_gather(next_gather_++);
    Slot& slot = slot_of(next_use_);
    compute_.wait(slot.filled);
    return slot.layer;
  }

  /// What reads layer l has been put on compute. Throws std::logic_error when it is not l's turn.
  void reshard(int l, CallSite = {}) {
    expect(next_use_ < next_gather_ && layer_of(next_use_) == l,
           "the layer that was gathered is the one to release");
    Slot& slot = slot_of(next_use_++);
    slot.layer.give_back();
    slot.free = compute_.record();
  }

  /// Memory for layer l's gradient, until it is lent for another layer's. It contains old values.
  View borrow_grads(int l, CallSite = {}) {
    Slot& slot = grads_[next_grads_ % grads_.size()];
    slot.layer.give_back();  // what was in it before, which may still be on its way: see the wait
    slot.layer = slot.memory.borrow(l);
    compute_.wait(slot.free);
    return slot.layer;
  }

  /// Averages `borrowed`, which compute forms, over the ranks. This rank's part of the mean is
  /// written to `own`, or added there. Returns the point at which that is done.
  Event reduce_scatter_mean(View borrowed, View own, Write write, CallSite = {}) {
    Slot& slot = grads_[next_grads_++ % grads_.size()];
    communication_.wait(compute_.record());
    return reduce(slot, borrowed, own, write);
  }

  /// Ends a step: compute goes on when the gradients are reduced. From here on it may read their
  /// shards, write those of parameters, and talk to the other ranks itself.
  void wait_for_gradients(CallSite = {}) {
    for (Slot& slot : grads_) slot.layer.give_back();
    compute_.wait(communication_.record());
    next_use_ = next_gather_ = next_grads_ = 0;
  }

  /// Layer l's shard of parameters is up to date at that point: none of its gathers starts before.
  void mark_ready(int l, const Event& event) { ready_[l] = event; }

 protected:
  struct Slot {
    LayerBuffer memory;
    Borrowed layer{};  // that is in it
    Event filled{};  // the gather has written it
    Event free{};  // whoever reads it, compute or the reduce-scatter, has read it
  };

  /// Puts the gather of layer l into that slot, which it then fills, on communication.
  virtual void gather(Slot& slot, int l) {
    communication_.wait(slot.free);
    communication_.wait(ready_[l]);
    comm_.all_gather(communication_, shards_.shard(l), slot.layer);
  }

  /// Puts the reduce-scatter of a slot's gradient, which is complete, on communication.
  virtual Event reduce(Slot& slot, View borrowed, View own, Write write) {
    comm_.reduce_scatter_mean(communication_, borrowed, own, write);
    return slot.free = communication_.record();
  }

 private:
  /// The layer of a step's use-th use.
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
    // Sent for the phase that needs the layer, not for the one that thought of it ahead.
    const PhaseScope phase(is_forward(use) ? Phase::forward : Phase::backward);
    gather(slot, l);
    slot.filled = communication_.record();
  }

  const int layers_;
  Stream& compute_;
  const int uses_;  // of layers in a step
  std::vector<Slot> params_;  // prefetch + 1, or as many as a step uses
  std::vector<Slot> grads_;  // at most two: one is formed while the other is on its way
  int next_use_ = 0, next_gather_ = 0, next_grads_ = 0;

 protected:
  Communicator& comm_;
  const Sharded& shards_;
  std::vector<Event> ready_;  // by layer
  Stream communication_;
};
}  // namespace zero
