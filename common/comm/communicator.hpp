// SPDX-License-Identifier: MIT
// What ranks say to each other. Every sum over ranks is added in rank order, in fp32, whatever the
// storage type and whoever owns the result: so the bits depend on N alone.
#pragma once
#include "comm/transport.hpp"
#include "compute/bus.hpp"

namespace zero {
enum class Collective { reduce_scatter, all_gather };
template <> inline constexpr std::array names_of<Collective>{"reduce_scatter", "all_gather"};

/// What this rank has sent, in elements, counted where they are handed to the transport.
struct Sent {
  By<Collective, By<Phase, std::int64_t>> elements{};  // with padding
  std::int64_t padding = 0;  // the part of `elements` that is padding
  std::int64_t scalars = 0;  // the two sums of each step: doubles, not among `elements`
};

/// Elements of a rank's part that reduce_scatter_mean moves and adds at once. CPU: 256 KiB, which
/// the cache still holds when they are added; with less, ranks that share cores wait too often.
/// GPU: all, for each launch of a kernel costs more.
constexpr std::int64_t piece_elements(DeviceType device, Dtype dtype, std::int64_t shard) {
  return device == DeviceType::cpu ? (std::int64_t{256} << 10) / bytes_of(dtype) : shard;
}

/// Elements of its receive buffer: of each other rank a piece to add and one that is on its way.
constexpr std::int64_t received_elements(DeviceType device, Dtype dtype, std::int64_t shard,
                                         std::int64_t ranks) {
  return (ranks - 1) * std::min(shard, 2 * piece_elements(device, dtype, shard));
}

/// Collectives on a stream. All ranks call the same ones in the same order, one at a time; views
/// passed to one stay untouched by others until the stream has got past it.
class Communicator {
 public:
  /// Of a process alone: there is nobody to talk to.
  Communicator() = default;
  /// Reserves the receive buffer of the ordered sum on that device, for whole layers of up to
  /// `largest` elements of that dtype. No collective takes less time than over that link.
  Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device& device,
               Dtype dtype, std::int64_t largest, Link link = {});

  /// Adds the ranks' `full` (size elements) in rank order, divides by N, rounds once, and writes
  /// this rank's 1/N of it over `own` (size / N elements; may be that part of `full`) or adds it
  /// there, rounding again. Each rank sends (N - 1) / N * size elements.
  void reduce_scatter_mean(Stream& stream, View full, View own, Write write = Write::overwrite);

  /// Rank r's `own` (size / N elements; may be that part of `full`) reaches every rank's r-th part
  /// of `full`. Each sends (N - 1) / N * size elements.
  void all_gather(Stream& stream, View own, View full);

  /// reduce_scatter_mean onto the own part, then all_gather: 2 (N - 1) / N * size elements sent.
  void all_reduce_mean(Stream& stream, View full) {
    reduce_scatter_mean(stream, full, slice(full, rank));
    all_gather(stream, slice(full, rank), full);
  }

  /// The ranks' sums added in rank order, when the stream has come so far: waits for it and for the
  /// other ranks. A step's one synchronisation.
  Totals await_all_reduced(Stream& stream, Sums& sums);

  /// Every rank's values, rank after rank, on every rank; all give equally many. In a stream's
  /// task, or for reports, outside of steps, when the streams are idle.
  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values);
  /// Every rank's text; they may differ in length.
  std::vector<std::string> gather_texts(const std::string& mine);

  /// Complete once the streams that carried the collectives are idle.
  const Sent& sent() const { return sent_; }
  /// False where a library sends what it adds, and only a formula says how much.
  bool counts() const { return !transport_ || !transport_->adds(); }
  /// Of the message passing; empty alone.
  std::string library() const { return transport_ ? transport_->library() : ""; }

  const int rank = 0;
  const int size = 1;

 private:
  View slice(View full, int r) const { return full.part(r * (full.size / size), full.size / size); }
  /// elements_of(peer), with its peer, for each other rank.
  template <class Of> std::vector<Part> parts(Of elements_of) const {
    std::vector<Part> parts;
    for (int i = 1; i < size; ++i) {
      const int peer = (rank + i) % size;  // the next one first: so that not all send to rank 0
      parts.push_back({elements_of(peer), peer});
    }
    return parts;
  }
  /// What a collective over `full` is, which leaves `made`.
  Work sending(const char* what, View full, View made) const {
    const View sent = full.part(0, full.size / size * (size - 1));
    return {what, Work::Sort::message, full.layer, sent.size, sent.bytes(), made};
  }
  /// Begins to send and to receive; what leaves is counted as the collective's, if it is one's.
  void start(Kernels& on, std::optional<Collective> collective, const std::vector<Part>& outgoing,
             const std::vector<Part>& incoming);
  void finish();
  /// Puts collective(kernels), over a vector of so many bytes, on the stream, for as long as the
  /// link would take.
  void run(Stream& stream, const Work& work, std::int64_t bytes, auto collective);

  std::unique_ptr<Transport> transport_;  // none alone
  std::optional<Scratch> received_;  // none alone
  std::unique_ptr<Kernels> on_host_;  // for messages of host memory
  Sent sent_;
  Link link_;
};
}  // namespace zero
