// SPDX-License-Identifier: MIT
// Collectives between N ranks. Sums are added in rank order, in fp32: their bits depend only on N.
#pragma once
#include "comm/transport.hpp"
#include "compute/bus.hpp"
#include "memory/call_site.hpp"

namespace zero {
/// What this rank has sent, in elements, counted where they are handed to the transport.
struct Sent {
  By<Collective, By<Phase, std::int64_t>> elements{};  // with padding
  std::int64_t padding = 0;  // the part of `elements` that is padding
  std::int64_t scalars = 0;  // the two sums of each step: doubles, not among `elements`

  By<Phase, std::int64_t> in_phases() const {
    By<Phase, std::int64_t> sums{};
    for (const auto& collective : elements) {
      for (const Phase phase : every<Phase>) sums[phase] += collective[phase];
    }
    return sums;
  }
};

/// Collectives on a stream. All ranks call the same ones in the same order, one at a time. Nobody
/// may write the views of a collective until the stream has got past it.
class Communicator {
 public:
  /// Reserves a receive buffer on that device: (N - 1) / N of `largest` elements of that dtype. No
  /// collective takes less time than on that link. transport: null for one rank.
  Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device& device,
               Dtype dtype, std::int64_t largest, Link link = {});
  virtual ~Communicator() = default;

  /// Adds the ranks' `full` (size elements) in rank order, divides by N, rounds once, and writes
  /// this rank's 1/N of the result to `own` (size / N elements; may be that part of `full`), or
  /// adds it there and rounds again. Each rank sends (N - 1) / N * size elements.
  void reduce_scatter_mean(Stream& stream, ConstView full, View own, Write write = Write::overwrite,
                           CallSite = {});

  /// Writes rank r's `own` (size / N elements; may be that part of `full`) to the r-th part of
  /// `full` on every rank. Each rank sends (N - 1) / N * size elements.
  void all_gather(Stream& stream, ConstView own, View full, CallSite = {});

  /// reduce_scatter_mean onto the own part, then all_gather: 2 (N - 1) / N * size elements sent.
  void all_reduce_mean(Stream& stream, View full, CallSite = {}) {
    reduce_scatter_mean(stream, full, slice(full, rank));
    all_gather(stream, slice(full, rank), full);
  }

  /// The sums over all ranks, added in rank order. Waits for the stream and all ranks: the one wait
  /// of a step. Throws Error (communication) on all ranks if their collectives so far differ.
  Totals await_all_reduced(Stream& stream, Sums& sums, CallSite = {});

  /// All ranks' values, in rank order; equally many each. In a stream's task, or with streams idle.
  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values,
                                    Collective as = Collective::gather);
  /// Every rank's text; they may differ in length. everywhere: on all ranks; else only on rank 0.
  std::vector<std::string> gather_texts(const std::string& mine, bool everywhere = true);

  /// Complete when the streams that carried the collectives are idle.
  const Sent& sent() const { return sent_; }
  /// Whether sent() counts elements. A library that adds sends more than it is handed.
  virtual bool counts() const { return true; }
  /// Names of the libraries that pass messages; empty for one rank.
  std::string library() const { return transport_ ? transport_->library() : ""; }

  const int rank = 0;
  const int size = 1;

 protected:
  template <class Elements> Elements slice(Elements full, int r) const {
    return full.part(r * (full.size / size), full.size / size);
  }
  /// The task of reduce_scatter_mean. others: memory for the other ranks' parts, in rank order.
  virtual void reduce_scatter(Kernels& on, ConstView full, View others, View own, Write write);
  /// The task of all_gather among several ranks. This rank's part is in place.
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
  /// Puts collective(kernels), over a vector of `bytes`, on the stream; no faster than the link.
  void run(Stream& stream, const Work& work, std::int64_t bytes, auto collective);

  std::unique_ptr<Transport> transport_;  // null for one rank
  Scratch received_;
  std::unique_ptr<Kernels> on_host_;  // for messages of host memory
  Sent sent_;
  Link link_;
  std::uint64_t history_ = 0;  // a hash of all collectives so far, the same on every rank
};

/// Over NCCL, one GPU per rank; MPI carries host values. The ranks meet through `everybody`. With
/// --reduce native NCCL adds, in its own order. Throws Error (resources) in a build without NCCL.
std::unique_ptr<Communicator> make_nccl_communicator(Device& gpu, const Options& options,
                                                     std::int64_t largest, Communicator& everybody);
bool nccl_is_built();
}  // namespace zero
