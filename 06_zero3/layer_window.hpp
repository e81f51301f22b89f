// SPDX-License-Identifier: MIT
// The few whole layers that exist at a time, and the communication beside the computation.
//
// Two streams: compute, and communication, which carries the layers' messages. The host runs
// ahead of both and only puts work on them, so every order between the two is a wait written here;
// the host itself waits once, at the end.
// A step uses layers 0 .. L-1, L-1 .. 0, once a micro-batch; while one use computes, the gathers
// of the next `prefetch` uses are under way, each in a slot of its own.
#pragma once
#include <algorithm>
#include <vector>

#include "common.hpp"
#include "memory/error.hpp"

namespace zero {
class LayerWindow {
 public:
  /// shards: this rank's parameters; whoever updates them says so by updated(). All that is
  /// referred to must outlive the window.
  LayerWindow(const Options& options,
              const Layout& layout,
              Communicator& comm,
              Stream& compute,
              const Tensor& shards)
      : layout_(layout),
        comm_(comm),
        compute_(compute),
        shards_(shards),
        micro_batches_(options.accumulate),
        updated_(layout.layers()),
        communication_("communication", compute.device(), Stream::Mode::urgent) {
    const int slots = std::min(options.prefetch + 1, uses());
    for (int i = 0; i < slots; ++i) {
      params_.emplace_back(compute.device(), Kind::parameters, options.dtype, layout);
    }
    const int buffers = std::min(2, uses() / 2);
    for (int i = 0; i < buffers; ++i) {
      grads_.emplace_back(compute.device(), Kind::gradients, options.dtype, layout);
    }
  }

  /// Waits for compute, which may be using the window's memory.
  ~LayerWindow() { compute_.synchronise(); }

  /// Layer l whole, until free(l). Throws std::logic_error when it is not l's turn.
  View gather(int l) {
    expect(next_use_ < uses() && layer_of(next_use_) == l,
           "layers are used in the order 0 .. L-1, L-1 .. 0");
    const int last = std::min(next_use_ + static_cast<int>(params_.size()), uses());
    while (next_gather_ < last) start_gather(next_gather_++);
    Slot& slot = slot_of(next_use_);
    compute_.wait(slot.arrived);
    return layout_.layer_in(slot.booking.view(), l);
  }

  /// Compute has been told all it does with layer l: when it is done, the slot is free. Throws
  /// std::logic_error when it is not l's turn.
  void free(int l) {
    expect(next_use_ < next_gather_ && layer_of(next_use_) == l,
           "the layer that was gathered is the one to free");
    Slot& slot = slot_of(next_use_++);
    slot.booking.end();
    slot.done = compute_.record();
  }

  /// A buffer for layer l's gradient, until reduce_scatter_mean(l). What it contains is left over.
  View gradients(int l) {
    Slot& slot = grads_[next_grads_ % grads_.size()];
    slot.booking = slot.scratch.book();
    compute_.wait(slot.done);
    return layout_.layer_in(slot.booking.view(), l);
  }

  /// Averages the gradient that compute forms over this rank's shard of it, or adds it there.
  void reduce_scatter_mean(int l, View shard, Write write) {
    Slot& slot = grads_[next_grads_++ % grads_.size()];
    communication_.wait(compute_.record());
    const View whole = layout_.layer_in(slot.booking.view(), l);
    comm_.reduce_scatter_mean(communication_, whole, shard, write);
    slot.done = communication_.record();
  }

  /// The point at which all gradients so far are reduced.
  Event reduced() { return communication_.record(); }

  /// The last micro-batch's gradients are on their way: compute may read the shards of gradients
  /// from here on, write those of parameters, and talk to the other ranks itself. The next gather
  /// begins another step.
  void finish() {
    for (Slot& slot : grads_) slot.booking.end();
    compute_.wait(reduced());
    next_use_ = next_gather_ = next_grads_ = 0;
  }

  /// Layer l's shard of parameters is up to date at that point: none of its gathers starts before.
  void updated(int l, const Event& when) { updated_[l] = when; }

 private:
  struct Slot {
    Slot(Device device, Kind kind, Dtype dtype, const Layout& layout)
        : scratch(device, kind, dtype, layout.largest_layer()) {}

    Scratch scratch;  // room for any layer
    Booking booking;
    Event arrived;  // the gather has written it
    Event done;  // whoever reads it, compute or the reduce-scatter, has read it
  };

  /// Uses of a layer in a step, and the layer of the use-th of them.
  int uses() const { return 2 * layout_.layers() * micro_batches_; }
  int layer_of(int use) const {
    const int place = use % (2 * layout_.layers());
    return is_forward(use) ? place : 2 * layout_.layers() - 1 - place;
  }
  bool is_forward(int use) const { return use % (2 * layout_.layers()) < layout_.layers(); }
  Slot& slot_of(int use) { return params_[use % params_.size()]; }

  void start_gather(int use) {
    const int l = layer_of(use);
    Slot& slot = slot_of(use);
    slot.booking = slot.scratch.book();
    // Sent for the phase that needs the layer, not for the one that thought of it ahead.
    const PhaseScope phase(is_forward(use) ? Phase::forward : Phase::backward);
    const View whole = layout_.layer_in(slot.booking.view(), l);
    communication_.wait(slot.done);
    communication_.wait(updated_[l]);
    copy(communication_, layout_.shard(shards_, l), layout_.shard_of(whole));
    comm_.all_gather(communication_, whole);
    slot.arrived = communication_.record();
  }

  const Layout& layout_;
  Communicator& comm_;
  Stream& compute_;
  const Tensor& shards_;
  const int micro_batches_;
  std::vector<Slot> params_;  // prefetch + 1, or as many as a step uses
  std::vector<Slot> grads_;  // at most two: one is formed while the other is on its way
  std::vector<Event> updated_;  // by layer
  int next_use_ = 0;
  int next_gather_ = 0;
  int next_grads_ = 0;
  Stream communication_;
};
}  // namespace zero
