// SPDX-License-Identifier: MIT
// A chapter's card (card.hpp beside its trainer): data that predicts its memory and traffic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "compute/phase.hpp"
#include "memory/device.hpp"

namespace zero {
/// What of a kind of state a rank stores, all or its shard, and where: device, host or host's disk.
enum class Placement { replicated, sharded, sharded_on_host, sharded_on_disk };
template <>
inline constexpr std::array names_of<Placement>{"replicated", "sharded", "sharded on the host",
                                                "sharded on the disk"};
constexpr Place place_of(Placement how) {
  return how == Placement::sharded_on_host   ? Place::host
         : how == Placement::sharded_on_disk ? Place::disk
                                             : Place::device;
}

/// A number of times per step: `a_step`, plus `a_micro_batch` for each micro-batch.
struct Frequency {
  double a_step = 0, a_micro_batch = 0;
  constexpr double in(double micro_batches) const { return a_step + a_micro_batch * micro_batches; }
};
constexpr Frequency once_a_step(double times = 1) { return {times, 0}; }
constexpr Frequency each_micro_batch(double times = 1) { return {0, times}; }

struct Card {
  const char* name;  // of the chapter's folder and program
  bool ranks = true;  // runs on MPI ranks; false: as one process
  bool mixed_precision = false;  // has --dtype and --loss-scale

  struct Placements {
    Placement parameters = Placement::replicated, gradients = Placement::replicated,
              optimizer = Placement::replicated;
  } held{};

  /// Elements that one of n ranks sends per parameter of the model, by phase, divided by (n - 1)/n.
  struct Sent {
    Frequency forward{}, backward{}, update{};
  } sent{};
  constexpr Frequency sent_in(Phase phase) const {
    if (phase == Phase::forward) return sent.forward;
    return phase == Phase::backward ? sent.backward
           : phase == Phase::update ? sent.update
                                    : Frequency();
  }

  /// Numbers of buffers that are lent for a while, besides `held`. Each has room for a whole layer.
  struct WholeLayers {
    int parameters = 0;
    bool and_prefetched = false;  // true: --prefetch N adds N buffers of parameters
    int gradients = 0;
    int pieces = 0;  // no layers: host memory has room for so many pieces of the state on a disk
  } borrowed{};

  /// Elements copied over the bus per parameter of a shard. A skipped step omits to_device.a_step.
  struct Copied {
    Frequency to_host{}, to_device{};
  } copied{};

  constexpr bool prefetches() const { return borrowed.and_prefetched; }
  /// Whether Adam runs on the host.
  constexpr bool offloads() const { return place_of(held.optimizer) != Place::device; }
  /// Whether gradients and new parameters pass through host memory, because the device stores them
  /// and Adam runs on the host. The host then stores master weights in every dtype.
  constexpr bool stages() const { return offloads() && place_of(held.gradients) == Place::device; }
  constexpr bool uses(Place place) const {
    return place == Place::device || (place == Place::host && offloads()) ||
           place == place_of(held.optimizer);
  }

  /// Returns for how many whole layers of `kind` there is memory: at most as many as a step uses.
  constexpr int slots(Kind kind, int prefetch, std::int64_t layers, std::int64_t accumulate) const {
    const bool params = kind == Kind::parameters;
    const std::int64_t uses = layers * accumulate * (params ? 2 : 1);
    const int most =
        params ? borrowed.parameters + borrowed.and_prefetched * prefetch : borrowed.gradients;
    return static_cast<int>(std::min<std::int64_t>(most, uses));
  }

  /// Returns one of n ranks' bytes in `place`. p, g, k: of all parameters, gradients, Adam's state.
  constexpr double bytes(Place place, double p, double g, double k, double n) const {
    const auto part = [=](Placement how, double all) {
      return place_of(how) != place ? 0 : how == Placement::replicated ? all : all / n;
    };
    const double staged = place == Place::host && stages() ? g / n : 0;
    return part(held.parameters, p) + part(held.gradients, g) + part(held.optimizer, k) + staged;
  }
};

/// Returns the card of a run with --state `place`. Only a card with state on a disk changes.
constexpr Card with_state(Card card, Place place) {
  if (!card.uses(Place::disk) || place == Place::disk) return card;
  card.held.optimizer = Placement::sharded_on_host;
  card.borrowed.pieces = 0;  // all of the state is in the host's memory
  return card;
}

/// Returns the formula of bytes(), as "p + (g + k)/n"; empty if nothing is held in that place.
inline std::string formula(const Card& card, Place place = Place::device) {
  std::string whole, parts = place == Place::host && card.stages() ? "g" : "";
  const auto add = [](std::string& sum, const std::string& term) {
    sum += (sum.empty() ? "" : " + ") + term;
  };
  const auto& [p, g, k] = card.held;
  for (const auto& [term, how] : {std::pair{"p", p}, {"g", g}, {"k", k}}) {
    if (place_of(how) == place) add(how == Placement::replicated ? whole : parts, term);
  }
  if (!parts.empty()) add(whole, (parts.size() > 1 ? "(" + parts + ")" : parts) + "/n");
  return whole;
}

/// Says when ranks add gradients. Chapters with equal answers, or one micro-batch, have equal bits.
inline std::string reduction_schedule(const Card& card) {
  return card.sent.backward.a_micro_batch > 0 ? "every micro-batch" : "once a step";
}

namespace cards {
using enum Placement;  // so that a chapter's card needs no Placement::
}
}  // namespace zero
