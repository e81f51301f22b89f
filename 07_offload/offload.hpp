// SPDX-License-Identifier: MIT
// The host beside the device: its cores, its memory, and the copies between the two. Down come a
// rank's gradients as they are reduced, beside backward; up go the parameters that Adam makes of
// them, beside the next forward: on one stream, the third, in that order. Both lie in the same
// bytes of the host: Adam reads a layer's gradient and writes its parameters in the place.
#pragma once
#include "common.hpp"

namespace zero {
class Offload {
 public:
  Offload(const Options& options, const Layout& layout, Stream& device_compute)
      : device_compute_(device_compute),
        staged_(device_compute.device().host(), layout, State::staged, options.dtype,
                for_copies(options)),
        copies_("copies", device_compute.device(), Stream::Mode::urgent),
        host_compute_("host cores", device_compute.device().host(), Stream::Mode::asynchronous) {}

  /// On which Adam runs.
  Stream& host_stream() { return host_compute_; }

  /// Layer l's part of the staging: its gradient; after Adam, in the same bytes, its parameters.
  View staged_grads(int l) { return staged_.shard(l); }
  View staged_params(int l) { return staged_.shard(l); }

  /// grads: of a layer, the sum over so many micro-batches, complete at `reduced`.
  void divide_and_copy_to_host(View grads, int micro_batches, const Event& reduced, CallSite = {}) {
    copies_.wait(reduced);
    divide(copies_, grads, micro_batches);
    copy(copies_, grads, staged_grads(grads.layer));
  }

  /// Both computations go on when all gradients are divided and have come down: the device's may
  /// read them, the host's what is staged.
  void wait_for_copies() {
    const Event on_host = copies_.record();
    device_compute_.wait(on_host);
    host_compute_.wait(on_host);
  }

  /// Copies a layer's parameters up when all that was put on the host's stream so far is done.
  /// Returns the point at which they are there.
  Event copy_to_device(View params, CallSite = {}) {
    copies_.wait(host_compute_.record());
    copy(copies_, staged_params(params.layer), params);
    return copies_.record();
  }

 private:
  Stream& device_compute_;
  Sharded staged_;  // on the host
  Stream copies_;
  Stream host_compute_;
};
}  // namespace zero
