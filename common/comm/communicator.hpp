// SPDX-License-Identifier: MIT
// What ranks say to each other. Every sum over ranks is added in rank order, in fp32, whatever the
// storage type and whoever owns the result: so the bits depend on N alone.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compute/reduction.hpp"
#include "compute/stream.hpp"
#include "memory/tensor.hpp"
#include "train/judge.hpp"

namespace zero {

enum class Collective { reduce_scatter, all_gather };
inline constexpr int collective_count = 2;

constexpr const char* name_of(Collective collective) {
  constexpr const char* names[] = {"reduce_scatter", "all_gather"};
  return names[static_cast<int>(collective)];
}

/// What this rank has sent, in elements, counted where they leave.
struct Sent {
  std::array<std::array<std::int64_t, phase_count>, collective_count> elements{};  // with padding
  std::int64_t padding = 0;  // the part of `elements` that is padding
  std::int64_t scalars = 0;  // the two sums of each step: doubles, not among `elements`
};

/// The processes that run one training together. This base is the one process of a run alone.
class Ranks {
 public:
  /// A process alone; its memory is counted from now on.
  Ranks()
      : Ranks(0, 1, "", process_peak_bytes()) {}
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Every rank's values, rank after rank, on every rank. For reports, outside of steps.
  virtual std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values);

  /// Complete once the streams that carried the collectives are idle. A library's own collectives
  /// cannot be counted: see counts().
  const Sent& sent() const { return sent_; }
  /// False where what is sent is known by formula only.
  virtual bool counts() const { return true; }

  const int rank;
  const int size;
  const std::string library;  // of the message passing; empty when there is none
  const std::int64_t process_bytes_at_start;  // physical memory of the process before the run

 protected:
  Ranks(int rank, int size, std::string library, std::int64_t process_bytes_at_start)
      : rank(rank),
        size(size),
        library(std::move(library)),
        process_bytes_at_start(process_bytes_at_start) {}

  /// The others, beginning with the next: so that not all send to rank 0 first.
  std::vector<int> peers() const;
  /// True when one rank alone would write what it reads: there is nothing to do.
  bool is_its_mean(View full, View shard, bool add) const {
    return size == 1 && !add && full.data == shard.data;
  }
  /// Books a part that leaves this rank for one other.
  void count(View part, Collective collective);

  Sent sent_;
};

/// Collectives on a stream. All ranks call the same ones in the same order; views passed to one
/// stay untouched by others until the stream has got past it. Throws Error (communication).
class Communicator : public Ranks {
 public:
  using Ranks::Ranks;

  /// Once, before the first collective: reserves the receive buffer of the ordered sum, for
  /// whole vectors of up to `largest` elements: (N - 1) / N of that many.
  virtual void reserve(Dtype dtype, std::int64_t largest);

  /// Adds the ranks' `full` (size elements) in rank order, divides by N, rounds once, and stores
  /// this rank's 1/N of it in `shard` (size / N elements; may be that part of `full`) or adds it
  /// there, rounding again. Each rank sends (N - 1) / N * size elements.
  virtual void reduce_scatter_mean(Stream& stream, View full, View shard, bool add = false) = 0;

  /// Rank r's 1/N of `full` reaches every rank's r-th part. Each sends (N - 1) / N * size elements.
  virtual void all_gather(Stream& stream, View full) = 0;

  /// reduce_scatter_mean onto the own part, then all_gather: 2 (N - 1) / N * size elements sent.
  void all_reduce_mean(Stream& stream, View full);

  /// The ranks' sums added in rank order. Waits for the stream: a step's one synchronisation.
  virtual Totals sum(Stream& stream, Sums& sums) = 0;

 protected:
  /// Checks what reduce_scatter_mean asks for and lends the receive buffer.
  Loan lend_received(View full, View shard) const;
  /// The part of it for one shard from each other rank.
  View places(const Loan& received, View shard) const {
    return received.view().part(0, shard.size * (size - 1));
  }

 private:
  std::optional<Scratch> received_;
};

}  // namespace zero
