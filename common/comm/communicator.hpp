// SPDX-License-Identifier: MIT
// What ranks say to each other. Every sum over ranks is added in rank order, in fp32, whatever the
// storage type and whoever owns the result: so the bits depend on N alone.
#pragma once
#include "comm/transport.hpp"
#include "compute/stream.hpp"

namespace zero {
enum class Collective { reduce_scatter, all_gather };
inline constexpr int collective_count = 2;

constexpr const char* name_of(Collective collective) {
  constexpr const char* names[] = {"reduce_scatter", "all_gather"};
  return names[static_cast<int>(collective)];
}

/// What this rank has sent, in elements, counted where they are handed to the transport.
struct Sent {
  std::array<std::array<std::int64_t, phase_count>, collective_count> elements{};  // with padding
  std::int64_t padding = 0;  // the part of `elements` that is padding
  std::int64_t scalars = 0;  // the two sums of each step: doubles, not among `elements`
};

/// Collectives on a stream. All ranks call the same ones in the same order, one at a time; views
/// passed to one stay untouched by others until the stream has got past it.
class Communicator {
 public:
  /// Of a process alone: there is nobody to talk to.
  Communicator() = default;
  /// Reserves the receive buffer of the ordered sum on that device, for whole layers of up to
  /// `largest` elements of that dtype: (N - 1) / N of that many.
  Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device device, Dtype dtype,
               std::int64_t largest);

  /// Adds the ranks' `full` (size elements) in rank order, divides by N, rounds once, and writes
  /// this rank's 1/N of it over `shard` (size / N elements; may be that part of `full`) or adds it
  /// there, rounding again. Each rank sends (N - 1) / N * size elements.
  void reduce_scatter_mean(Stream& stream, View full, View shard, Write write = Write::over);

  /// Rank r's 1/N of `full` reaches every rank's r-th part. Each sends (N - 1) / N * size elements.
  void all_gather(Stream& stream, View full);

  /// reduce_scatter_mean onto the own part, then all_gather: 2 (N - 1) / N * size elements sent.
  void all_reduce_mean(Stream& stream, View full) {
    reduce_scatter_mean(stream, full, slice(full, rank));
    all_gather(stream, full);
  }

  /// The ranks' sums added in rank order. Waits for the stream: a step's one synchronisation.
  Totals sum(Stream& stream, Sums& sums);

  /// Every rank's values, rank after rank, on every rank; all give equally many. In a stream's
  /// task, or for reports, outside of steps, when the streams are idle.
  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values);

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
  /// Sends mine(peer) to each other rank, counted as the collective's, and receives theirs(peer).
  template <class Mine, class Theirs>
  void exchange(Kernels& on, std::optional<Collective> collective, Mine mine, Theirs theirs);

  std::unique_ptr<Transport> transport_;  // none alone
  Scratch received_{Device::cpu, Kind::communication, Dtype::fp32, 0};
  Sent sent_;
};
}  // namespace zero
