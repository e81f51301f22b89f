// SPDX-License-Identifier: MIT
// Adam on the host, as in ZeRO-Offload. During backward the stream `copies` moves each reduced
// gradient shard to a staging buffer on the host. Adam, on the host's cores, reads it there and
// writes the new parameters over it. `copies` then moves them to the device for the next forward.
// One buffer is enough, because Adam reads an element's gradient before it writes the parameter.
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

  /// Returns the host's stream, on which Adam runs.
  Stream& host_stream() { return host_compute_; }

  /// Return layer l's shard in the staging buffer: its gradient, which Adam replaces by parameters.
  View staged_grads(int l) { return staged_.shard(l); }
  View staged_params(int l) { return staged_.shard(l); }

  /// Queues both on `copies`, behind `reduced`. grads: a layer's shard, summed over micro-batches.
  void divide_and_copy_to_host(View grads, int micro_batches, const Event& reduced, CallSite = {}) {
    copies_.wait(reduced);
    divide(copies_, grads, micro_batches);
    copy(copies_, grads, staged_grads(grads.layer));
  }

  /// Makes later work on compute and on the host's stream wait until all gradients are divided and
  /// copied. Then compute may read the gradients, and Adam their copies on the host.
  void wait_for_copies() {
    const Event on_host = copies_.record();
    device_compute_.wait(on_host);
    host_compute_.wait(on_host);
  }

  /// Queues the copy of a layer's new parameters from staging to `params`, behind the work that is
  /// on the host's stream so far. The returned event is complete when they are on the device.
  Event copy_to_device(View params, CallSite = {}) {
    copies_.wait(host_compute_.record());
    copy(copies_, staged_params(params.layer), params);
    return copies_.record();
  }

 private:
  Stream& device_compute_;
  Sharded staged_;  // on the host, pinned unless --pageable is set
  Stream copies_;  // urgent: a GPU divides before it goes on with backward, so copies begin early
  Stream host_compute_;
};
}  // namespace zero
