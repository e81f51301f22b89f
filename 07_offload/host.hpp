// SPDX-License-Identifier: MIT
// The host beside the device: its cores, its memory, and the copies between the two.
//
// Down come a rank's gradients, layer by layer as they are reduced, beside backward; up go the
// parameters that Adam makes of them, beside the next forward. Both take one third stream, of
// copies, in that order. A layer's gradient and then its parameters lie in the same page-locked
// bytes: Adam reads the one and writes the other in its place.
#pragma once
#include "common.hpp"

namespace zero {
class Host {
 public:
  Host(const Options& options, const Layout& layout, Stream& compute)
      : layout_(layout),
        compute_(compute),
        micro_batches_(options.accumulate),
        staging_(options.pageable ? Device::host : compute.device(),
                 Kind::communication,
                 options.dtype,
                 layout.shard_size(),
                 Memory::staging),
        copies_("copies", compute.device(), Stream::Mode::urgent),
        cores_("host cores", Device::host, Stream::Mode::worker) {}

  /// For Adam, beside the device.
  Stream& cores() { return cores_; }

  /// Layer l's shard of what is on its way: the gradient until Adam has run, then the parameters.
  View staged(int l) const { return layout_.shard(staging_, l); }

  /// Layer l's gradient, the sum over micro-batches at the point `reduced`: divides it by their
  /// number and copies it down.
  void bring_down(int l, View grads, const Event& reduced) {
    copies_.wait(reduced);
    divide(copies_, grads, micro_batches_);
    copy(copies_, grads, staged(l));
  }

  /// All gradients have been brought down: compute may read them from here on, and whoever waits
  /// for compute may use what is staged.
  void finish() { compute_.wait(copies_.record()); }

  /// Copies layer l's parameters up, when the cores have done all they were told so far. Returns
  /// the point at which they are there.
  Event send_up(int l, View params) {
    copies_.wait(cores_.record());
    copy(copies_, staged(l), params);
    return copies_.record();
  }

  /// Waits until all of that is done.
  void synchronise() { copies_.synchronise(); }

 private:
  const Layout& layout_;
  Stream& compute_;
  const int micro_batches_;
  Tensor staging_;  // shard, page-locked
  Stream copies_;
  Stream cores_;
};
}  // namespace zero
