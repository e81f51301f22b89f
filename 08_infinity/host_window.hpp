// SPDX-License-Identifier: MIT
// The host stores parameters and gradients. Layer by layer, parameters are copied up to the device
// before their use, and reduced gradients are copied down to the host after the layer's backward.
// Streams: compute and communication, as in 06; copies up and copies down, one per direction of the
// bus; and the host's cores. Where one stream must follow another, this or 06's file has a wait.
#pragma once
#include <utility>

#include "06_zero3/layer_window.hpp"

namespace zero {
/// 06's window for shards in host memory. A gather first copies this rank's shard up into the
/// slot, so each of N ranks' buses carries 1/N of a layer: ZeRO-Infinity's bandwidth-centric way.
class HostWindow : public LayerWindow {
 public:
  /// cores: the host's stream. Declare the window last, like 06's. The destructor waits for cores.
  HostWindow(const Card& card, const Options& options, const Layout& layout, Communicator& comm,
             Stream& compute, const Sharded& shards, Stream& cores)
      : LayerWindow(card, options, layout, comm, compute, shards),
        cores_(cores),
        up_("copies up", compute.device(), Stream::Mode::urgent),
        down_("copies down", compute.device(), Stream::Mode::urgent) {
    if (options.accumulate == 1) return;
    for (int i = 0; i < landings; ++i) {
      landings_.push_back({cores.device().new_slot(),
                           Tensor(cores.device(), Kind::communication, options.dtype,
                                  layout.largest_layer() / layout.ranks(), for_copies(options))});
    }
  }
  ~HostWindow() override { cores_.synchronise(); }  // an "add" may still read a landing

 private:
  struct Landing {  // host memory for a gradient's shard, until the cores have added it to `own`
    int id;  // number of this memory in traces
    Tensor memory;
    Event added{};  // complete when the cores have added what was copied here
  };

  void gather(Slot& slot, int l) override {
    const ConstView own = shards_.shard(l);
    const View part_in_slot = slot.layer.view().part(own.start, own.size);
    up_.wait(slot.free);
    up_.wait(ready_[l]);
    copy(up_, own, part_in_slot);
    communication_.wait(up_.record());
    comm_.all_gather(communication_, part_in_slot, slot.layer);
  }

  /// Reduce-scatters into this rank's part of the slot. Then copies that part down: to `own`, or,
  /// if write is Write::add, to a landing, which the host's cores add to `own`. Only after the
  /// returned event may `own` be read: wait_for_gradients() waits for neither copy nor cores.
  Event reduce(Slot& slot, View borrowed, View own, Write write) override {
    const View part_in_slot = borrowed.part(own.start, own.size);
    comm_.reduce_scatter_mean(communication_, borrowed, part_in_slot);
    down_.wait(communication_.record());
    if (write == Write::overwrite) {
      copy(down_, part_in_slot, own);
      return slot.free = down_.record();
    }
    Landing& landing = landings_[next_landing_++ % landings];
    View landed = own;  // described as own's elements, but in the landing's memory
    landed.data = landing.memory.view().data, landed.slot = landing.id;
    down_.wait(landing.added);
    copy(down_, part_in_slot, landed);
    slot.free = down_.record();
    cores_.wait(slot.free);
    cores_.run(work_on("add", {landed, own}, {own}),
               [=, &on = cores_.kernels()] { on.add(landed, own); });
    return landing.added = cores_.record();
  }

  static constexpr int landings = 2;  // one is filled while the other is added
  Stream& cores_;
  std::vector<Landing> landings_;  // empty with one micro-batch per step
  std::size_t next_landing_ = 0;
  Stream up_, down_;
};

/// The host's cores divide and square gradients during backward (06 does so after it) and run Adam.
class HostCores {
 public:
  HostCores(Device& host, const Layout& layout)
      : cores_("host cores", host, Stream::Mode::asynchronous) {
    for (int l = 0; l < layout.layers(); ++l) squares_.emplace_back(host);
  }

  Stream& stream() { return cores_; }  // of the host; Adam runs on it

  /// After `summed`, the cores divide `grads`, a layer's shard, and sum the squares of the result.
  void divide_and_square(View grads, int micro_batches, const Event& summed, CallSite = {}) {
    cores_.wait(summed);
    divide(cores_, grads, micro_batches);
    squared_norm(cores_, grads, squares_[grads.layer]);
  }

  /// Queues on compute, behind the cores' work: to.squares_on_host = sum of squares_, then cleared.
  void add_squares(Stream& compute, Sums& to, CallSite = {}) {
    compute.wait(cores_.record());
    compute.run({"add_squares"}, [this, &to] {
      to.squares_on_host = 0;  // then add from layer 0 up, in 06's order, for 06's bits
      for (Sums& layer : squares_) to.squares_on_host += std::exchange(layer.totals.squares, 0);
    });
  }

 private:
  std::vector<Sums> squares_;  // [l]: sum of squares of this rank's shard of layer l's gradient
  Stream cores_;
};
}  // namespace zero
