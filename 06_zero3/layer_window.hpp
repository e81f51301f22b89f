// SPDX-License-Identifier: MIT
// The few whole layers that exist at a time, and the communication beside the computation.
//
// Two streams: compute, and communication, which makes all of the step's MPI calls. The host runs
// ahead of both and only puts work on them, so every order between the two is a wait written here.
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
  /// layout, comm and compute must outlive the window; the window stops compute when it goes.
  LayerWindow(const Options& options, const Layout& layout, Communicator& comm, Stream& compute)
      : layout_(layout),
        comm_(comm),
        compute_(compute),
        micro_batches_(options.accumulate) {
    const int slots = std::min(options.prefetch + 1, uses());
    for (int i = 0; i < slots; ++i) {
      params_.emplace_back(Kind::parameters, options.dtype, layout.largest());
    }
    const int buffers = std::min(2, uses() / 2);
    for (int i = 0; i < buffers; ++i) {
      grads_.emplace_back(Kind::gradients, options.dtype, layout.largest());
    }
  }

  ~LayerWindow() {
    communication_.stop();
    compute_.stop();
  }

  /// A step begins: `shards` are this rank's parameters, which compute has been told to update.
  /// They stay where they are until the step ends.
  void begin(const Tensor& shards) {
    shards_ = &shards;
    next_use_ = next_gather_ = next_grads_ = 0;
    communication_.wait(compute_.record());
  }

  /// Layer l whole, until release(l). Throws std::logic_error when it is not l's turn.
  View get(int l) {
    expect(next_use_ < uses() && layer_of(next_use_) == l,
           "layers are used in the order 0 .. L-1, L-1 .. 0");
    const int last = std::min(next_use_ + static_cast<int>(params_.size()), uses());
    while (next_gather_ < last) gather(next_gather_++);
    Slot& slot = slot_of(next_use_);
    compute_.wait(slot.arrived);
    return layout_.as_layer(slot.loan.view(), l);
  }

  /// Compute has been told all it does with layer l: when it is done, the slot is free. Throws
  /// std::logic_error when it is not l's turn.
  void release(int l) {
    expect(layer_of(next_use_) == l, "the layer that was got is the one to release");
    Slot& slot = slot_of(next_use_++);
    slot.loan.end();
    slot.done = compute_.record();
  }

  /// A buffer for layer l's gradient, until reduce_scatter(l). What it contains is left over.
  View gradients(int l) {
    Slot& slot = grads_[next_grads_ % grads_.size()];
    slot.loan.end();
    slot.loan = slot.scratch.borrow();
    compute_.wait(slot.done);
    return layout_.as_layer(slot.loan.view(), l);
  }

  /// Averages the gradient that compute forms into (or adds it to) this rank's shard of it.
  void reduce_scatter(int l, View shard, bool add) {
    Slot& slot = grads_[next_grads_++ % grads_.size()];
    communication_.wait(compute_.record());
    comm_.reduce_scatter_mean(communication_, layout_.as_layer(slot.loan.view(), l), shard, add);
    slot.done = communication_.record();
  }

  /// Compute may read the gradient shards from here on.
  void finish() {
    for (Slot& slot : grads_) slot.loan.end();
    compute_.wait(communication_.record());
  }

  /// The ranks' sums of what compute has been told to add up. The host waits.
  Totals sum(Sums& sums) {
    communication_.wait(compute_.record());
    return comm_.sum(communication_, sums);
  }

 private:
  struct Slot {
    Slot(Kind kind, Dtype dtype, std::int64_t size)
        : scratch(kind, dtype, size) {}

    Scratch scratch;  // room for the largest layer
    Loan loan;
    Event arrived;  // the gather has written it
    Event done;  // its reader has read it
  };

  /// Uses of a layer in a step, and the layer of the use-th of them.
  int uses() const { return 2 * layout_.layers() * micro_batches_; }
  int layer_of(int use) const {
    const int place = use % (2 * layout_.layers());
    return is_forward(use) ? place : 2 * layout_.layers() - 1 - place;
  }
  bool is_forward(int use) const { return use % (2 * layout_.layers()) < layout_.layers(); }
  Slot& slot_of(int use) { return params_[use % params_.size()]; }

  void gather(int use) {
    expect(shards_ != nullptr, "begin() comes before the first get()");
    const int l = layer_of(use);
    // Booked under the phase that needs the layer, not the one that thought of it ahead.
    const PhaseScope phase(is_forward(use) ? Phase::forward : Phase::backward);
    Slot& slot = slot_of(use);
    slot.loan = slot.scratch.borrow();
    const View whole = layout_.as_layer(slot.loan.view(), l);
    communication_.wait(slot.done);
    copy(communication_, layout_.shard(*shards_, l), layout_.mine(whole));
    comm_.all_gather(communication_, whole);
    slot.arrived = communication_.record();
  }

  const Layout& layout_;
  Communicator& comm_;
  Stream& compute_;
  int micro_batches_;
  const Tensor* shards_ = nullptr;
  std::vector<Slot> params_;  // prefetch + 1
  std::vector<Slot> grads_;  // two: one is formed while the other is on its way
  int next_use_ = 0;
  int next_gather_ = 0;
  int next_grads_ = 0;
  Stream communication_{"communication", Stream::Mode::worker};
};

}  // namespace zero
