// SPDX-License-Identifier: MIT
// What a chapter's own formulas predict about bytes held and elements sent.
#pragma once
#include <fmt/format.h>

#include "compute/bus.hpp"
#include "compute/kernels.hpp"
#include "memory/layout.hpp"
#include "train/adam.hpp"
#include "train/data.hpp"

namespace zero {
/// "1 rank", "2 ranks".
inline std::string counted(std::int64_t number, const char* what) {
  return fmt::format("{} {}{}", grouped(number), what, number == 1 ? "" : "s");
}

/// Of a checkpoint, a parameter: the master weight and the two moments, in every dtype.
inline constexpr std::int64_t checkpoint_bytes = optimizer_bytes(Dtype::bf16);

/// What is copied, in tables, by whose bus it takes.
inline constexpr By<Place, By<Direction, const char*>> copied_words{
    By<Direction, const char*>{"gradients to host", "parameters to device"},
    By<Direction, const char*>{}, By<Direction, const char*>{"state from disk", "state to disk"}};
inline constexpr By<Place, const char*> place_words{"on a device", "on its host", "on its disk"};
/// That have a bus to the host.
inline constexpr Place far_places[] = {Place::device, Place::disk};

/// What one rank is going to hold and send.
struct Prediction {
  struct Bytes {
    std::int64_t resident = 0;
    std::int64_t peak = 0;  // of this kind; equals what is reserved
    std::string formula{};  // of the peak, with the run's numbers: "4 x (526 336/4 + 65 792)"
  };
  By<Place, By<Kind, Bytes>> bytes{};  // what host and disk hold they hold throughout
  /// Of all kinds: of the peaks it is what is reserved.
  std::int64_t sum(std::int64_t Bytes::*figure, Place place = Place::device) const {
    std::int64_t sum = 0;
    for (const Bytes& kind : bytes[place]) sum += kind.*figure;
    return sum;
  }
  struct Steps {
    std::int64_t all = 1;
    std::int64_t skipped = 0;  // of them: these had no update
    bool last_skipped = false;
  };
  /// In so many steps.
  struct Traffic {
    By<Phase, std::int64_t> sent{};  // elements, by one rank
    std::int64_t padding = 0;  // elements of it, by all ranks together
    std::int64_t scalars = 0;  // beside `sent`
    By<Place, By<Direction, std::int64_t>> copied{};  // bytes over one rank's buses
  };
  Traffic traffic(Steps steps) const;
  /// Elements sent in a step, with the run's numbers: "2 x 526 336 x 3/4".
  std::string formula(Phase phase) const;

  std::int64_t optimizer = 0;  // bytes per parameter, with master weights
  By<Phase, double> factors{};  // elements sent per parameter, in units of (n - 1)/n
  struct Copies {
    std::int64_t a_step = 0, an_update = 0;  // bytes per parameter of the shard
  };
  By<Place, By<Direction, Copies>> copies{};
  std::int64_t read_ahead = 0;  // bytes that a step reads from the disk whether it updates or not
  std::int64_t parameters = 0, padded = 0, ranks = 1;
};

/// Throws Error (data) as source_bytes does.
Prediction predict(const Card& card, const Options& options, DeviceType device,
                   const Layout& layout);

/// Bytes that a rank leaves to libraries on its GPU: a guess for the code of their kernels, and
/// what NCCL allocates with the first message to each other rank of the machine. By the source
/// of 2.28 (transport/p2p.cc) that is, over NVLink, 10 + 2 MiB for each block of NCCL's.
constexpr std::int64_t bytes_for_libraries(int nccl_peers) {
  return (std::int64_t{512} + nccl_peers * message_blocks * (10 + 2)) << 20;
}

/// Throws Error (resources) when what a rank will reserve exceeds its share of the memory available
/// now, or the options' limit. Returns one device's bytes.
std::int64_t check_memory(const Card& card, const Options& options, const Choice& choice,
                          Device& device, const Layout& layout);

/// What --plan prints: for options.ranks ranks on that device.
void print_prediction(const Card& card, const Options& options, DeviceType device);
}  // namespace zero
