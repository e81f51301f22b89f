// SPDX-License-Identifier: MIT
// Collectives between N ranks. All but NCCL's own add in rank order, so timing changes no bit.
#pragma once
#include "comm/transport.hpp"
#include "compute/bus.hpp"
#include "memory/call_site.hpp"

namespace zero {
/// Counts the elements that this rank sends, where they are handed to the transport.
struct Sent {
  By<Collective, By<Phase, std::int64_t>> elements{};  // with padding
  std::int64_t padding = 0;  // the part of `elements` that is padding
  std::int64_t scalars = 0;  // doubles, not among `elements`: a step's two sums, to each other rank

  By<Phase, std::int64_t> in_phases() const {
    By<Phase, std::int64_t> sums{};
    for (const auto& collective : elements) {
      for (const Phase phase : every<Phase>) sums[phase] += collective[phase];
    }
    return sums;
  }
};

/// Queues collectives on a stream. All ranks call the same ones in the same order, one at a time.
/// Nobody may write the views of a collective until the stream has got past it.
class Communicator {
 public:
  /// Reserves a receive buffer on `device` for (N - 1) / N of `largest` elements of `dtype`. Each
  /// collective takes at least its time over `link`. transport: null for one rank.
  Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device& device,
               Dtype dtype, std::int64_t largest, Link link = {});
  virtual ~Communicator() = default;

  /// Adds the ranks' `full` in rank order, divides by N, rounds once, and writes this rank's 1/N of
  /// the result to `own` (full.size / N elements; may be that part of `full`), or adds it there and
  /// rounds again. Each rank sends (N - 1) / N * full.size elements.
  void reduce_scatter_mean(Stream& stream, ConstView full, View own, Write write = Write::overwrite,
                           CallSite = {});

  /// Writes rank r's `own` (full.size / N elements; may be that part of `full`) to the r-th part of
  /// `full` on every rank. Each rank sends (N - 1) / N * full.size elements.
  void all_gather(Stream& stream, ConstView own, View full, CallSite = {});

  /// Queues reduce_scatter_mean onto the own part, then all_gather. Sends twice as many elements.
  void all_reduce_mean(Stream& stream, View full, CallSite = {}) {
    reduce_scatter_mean(stream, full, slice(full, rank));
    all_gather(stream, slice(full, rank), full);
  }

  /// Returns the sums over all ranks, added in rank order. The host waits for the stream and ranks:
  /// its one wait in a step. Throws Error (communication) on all if collectives so far differ.
  Totals await_all_reduced(Stream& stream, Sums& sums, CallSite = {});

  /// Returns all ranks' values in rank order; all ranks give equally many. Call it in a stream's
  /// task, or with idle streams. as: Collective::sums counts all but the last as Sent::scalars.
  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values,
                                    Collective as = Collective::gather);
  /// Returns every rank's text, of any length; ranks other than 0 get texts only if `everywhere`.
  std::vector<std::string> gather_texts(const std::string& mine, bool everywhere = true);

  /// Returns counts that are complete when the streams that carried the collectives are idle.
  const Sent& sent() const { return sent_; }
  /// Whether sent() counts elements. With --reduce native nobody knows what NCCL sends.
  virtual bool counts() const { return true; }
  /// Returns the names of the libraries that pass messages; empty for one rank.
  std::string library() const { return transport_ ? transport_->library() : ""; }

  const int rank = 0;
  const int size = 1;

 protected:
  template <class Elements> Elements slice(Elements full, int r) const {  // rank r's part
    return full.part(r * (full.size / size), full.size / size);
  }
  /// Performs reduce_scatter_mean. others: memory for the other ranks' parts, in rank order.
  virtual void reduce_scatter(Kernels& on, ConstView full, View others, View own, Write write);
  /// Performs all_gather among several ranks, when this rank's part is already in `full`.
  virtual void gather_parts(Kernels& on, View full);

 private:
  /// Describes a collective. The larger of its two views is the whole vector.
  Work sending(const char* what, ConstView from, ConstView to) const {
    const ConstView full = from.size > to.size ? from : to;
    const ConstView sent = full.part(0, full.size / size * (size - 1));
    return {what, Work::Type::message, full.layer, sent.size, sent.bytes(), {from}, {to}};
  }
  /// Sends out_to(r) to each other rank r, and fills in_from(r) with what r sends. Counts elements.
  void exchange(Kernels& on, Collective of, auto out_to, auto in_from);
  /// Puts collective(kernels) on the stream. It takes at least link_.time() for `bytes`.
  void run(Stream& stream, const Work& work, std::int64_t bytes, auto collective);

  std::unique_ptr<Transport> transport_;  // null for one rank
  Scratch received_;
  std::unique_ptr<Kernels> on_host_;  // for messages of host memory
  Sent sent_;
  Link link_;
  std::uint64_t history_ = 0;  // a hash of all collectives so far, the same on every rank
};

/// Uses NCCL, one GPU per rank, and MPI for host values. everybody: sends NCCL's id by MPI. With
/// --reduce native NCCL adds, in its own order. Throws Error (resources) in a build without NCCL.
std::unique_ptr<Communicator> make_nccl_communicator(Device& gpu, const Options& options,
                                                     std::int64_t largest, Communicator& everybody);
bool nccl_is_built();
}  // namespace zero
