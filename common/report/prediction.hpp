// SPDX-License-Identifier: MIT
// Predicts from a chapter's card what a rank holds (bytes), sends (elements) and copies (bytes).
#pragma once
#include "compute/bus.hpp"
#include "compute/kernels.hpp"
#include "memory/layout.hpp"
#include "train/adam.hpp"
#include "train/data.hpp"

namespace zero {
/// Returns a number with what it counts, as "1 rank" or "2 ranks".
inline std::string counted(std::int64_t number, const char* what) {
  return grouped(number) + " " + what + (number == 1 ? "" : "s");
}

/// Bytes per parameter of a checkpoint: the master weight and two moments, in every dtype.
inline constexpr std::int64_t checkpoint_bytes = optimizer_bytes(Dtype::bf16);

/// What a bus copies, in the words of the tables. A host has no bus of its own.
inline constexpr By<Place, By<Direction, const char*>> copied_words{
    By<Direction, const char*>{"gradients to host", "parameters to device"},
    By<Direction, const char*>{}, By<Direction, const char*>{"state from disk", "state to disk"}};
inline constexpr By<Place, const char*> place_words{"on a device", "on its host", "on its disk"};
inline constexpr Place bus_places[] = {Place::device, Place::disk};  // joined to the host by a bus

struct Prediction {
  struct Bytes {
    std::int64_t resident = 0;
    std::int64_t peak = 0;  // the most in use at one moment; as many are reserved
    std::string formula{};  // of the peak, with the run's numbers: "4 x (526 336/4 + 65 792)"
  };
  By<Place, By<Kind, Bytes>> bytes{};  // of one rank; on host and disk all of them are resident
  /// Returns the sum of a figure over all kinds. The peaks' sum is the number of reserved bytes.
  std::int64_t sum(std::int64_t Bytes::*figure, Place place = Place::device) const {
    std::int64_t sum = 0;
    for (const Bytes& kind : bytes[place]) sum += kind.*figure;
    return sum;
  }
  struct Steps {
    std::int64_t all = 1;
    std::int64_t skipped = 0;  // steps without an update, among `all`
    bool last_skipped = false;  // true: no update has used what the last step read ahead
  };
  /// What one rank sends and copies in a number of steps; of padding, what all ranks send.
  struct Traffic {
    By<Phase, std::int64_t> sent{};  // elements, with padding
    std::int64_t padding = 0;  // elements, summed over ranks, as shards differ in padding
    std::int64_t scalars = 0;  // doubles, not in `sent`: in each step 2 to each other rank
    By<Place, By<Direction, std::int64_t>> copied{};  // bytes, by bus and direction
  };
  Traffic traffic(Steps steps) const;  // throws Error (usage) if a number exceeds 63 bits
  /// Returns the formula of a step's elements sent in that phase, as "2 x 526 336 x 3/4".
  std::string formula(Phase phase) const;

  std::int64_t optimizer = 0;  // bytes of optimizer state per parameter
  By<Phase, double> factors{};  // elements sent per parameter in a step, in units of (n - 1)/n
  struct Copies {  // bytes per element of the rank's shard
    std::int64_t a_step = 0, an_update = 0;  // in every step; in addition, with an update
  };
  By<Place, By<Direction, Copies>> copies{};  // by bus and direction
  std::int64_t read_ahead = 0;  // bytes that even a skipped step has begun to read from the disk
  std::int64_t parameters = 0, padded = 0, ranks = 1;  // padded: parameters with padding
};

/// Predicts a run on ranks that share `layout`. Throws Error (data) like source_bytes().
Prediction predict(const Card& card, const Options& options, DeviceType device,
                   const Layout& layout);

/// Returns the bytes of a GPU's memory that a rank leaves to libraries: 512 MiB, a guess, for their
/// kernels' code; and for NCCL's buffers to each of nccl_peers, the machine's other ranks: over
/// NVLink 10 + 2 MiB for each of NCCL's thread blocks (transport/p2p.cc of NCCL 2.28).
constexpr std::int64_t bytes_for_libraries(int nccl_peers) {
  return (std::int64_t{512} + nccl_peers * message_blocks * (10 + 2)) << 20;
}

/// Throws Error (resources) if the bytes that a rank will reserve exceed its share of the available
/// memory or disk, or --device-memory. Returns the bytes on the device.
std::int64_t check_memory(const Card& card, const Options& options, const Choice& choice,
                          Device& device, const Layout& layout);

/// Prints what --plan says, for options.ranks ranks on that device.
void print_prediction(const Card& card, const Options& options, DeviceType device);
}  // namespace zero
