// SPDX-License-Identifier: MIT
// A chapter's card (card.hpp beside its trainer): data from which bytes and formulas follow.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "compute/work.hpp"

namespace zero {
/// By each rank: all of it, its part, or its part with the host beside its device, or on a disk.
enum class Held { replicated, sharded, sharded_on_host, sharded_on_disk };
template <>
inline constexpr std::array names_of<Held>{"replicated", "sharded", "sharded on the host",
                                           "sharded on the disk"};
constexpr Place place_of(Held how) {
  return how == Held::sharded_on_host   ? Place::host
         : how == Held::sharded_on_disk ? Place::disk
                                        : Place::device;
}

/// How often: times a step plus times a micro-batch.
struct Frequency {
  double a_step = 0, a_micro_batch = 0;
  constexpr double in(double micro_batches) const { return a_step + a_micro_batch * micro_batches; }
};
constexpr Frequency once_a_step(double times = 1) { return {times, 0}; }
constexpr Frequency each_micro_batch(double times = 1) { return {0, times}; }

struct Card {
  const char* name;
  bool ranks = true;  // runs on MPI ranks
  bool mixed_precision = false;  // has --dtype and --loss-scale

  /// Who holds what throughout.
  struct Holds {
    Held parameters = Held::replicated, gradients = Held::replicated, optimizer = Held::replicated;
  } held{};

  /// Elements a parameter that a rank sends, in units of (n - 1)/n.
  struct Sent {
    Frequency forward{}, backward{}, update{};
  } sent{};
  constexpr Frequency sent_in(Phase phase) const {
    if (phase == Phase::forward) return sent.forward;
    return phase == Phase::backward ? sent.backward
           : phase == Phase::update ? sent.update
                                    : Frequency();
  }

  /// Whole layers in use beside what is held: of parameters, and as many more as --prefetch says.
  struct WholeLayers {
    int parameters = 0;
    bool and_prefetched = false;
    int gradients = 0;
    int pieces = 0;  // beside them: of a disk's optimizer state, in the host's memory
  } borrowed{};

  /// Elements over the bus for each of the rank's parameters; what goes to the device once a step
  /// does not in a skipped one.
  struct Copied {
    Frequency to_host{}, to_device{};
  } copied{};

  /// Has a window, in which whole layers outlive a phase, and --prefetch.
  constexpr bool prefetches() const { return borrowed.and_prefetched; }
  /// Adam runs on the host.
  constexpr bool offloads() const { return place_of(held.optimizer) != Place::device; }
  /// What Adam needs of gradients, and makes of parameters, passes through room on the host, which
  /// has master weights of its own in every dtype.
  constexpr bool stages() const { return offloads() && place_of(held.gradients) == Place::device; }
  constexpr bool uses(Place place) const {
    return place == Place::device || (place == Place::host && offloads()) ||
           place == place_of(held.optimizer);
  }

  /// The whole layers that a step of so many micro-batches has room for: no more than it uses.
  constexpr int slots(Kind kind, int prefetch, std::int64_t layers, std::int64_t accumulate) const {
    const bool params = kind == Kind::parameters;
    const std::int64_t uses = layers * accumulate * (params ? 2 : 1);
    const int most =
        params ? borrowed.parameters + borrowed.and_prefetched * prefetch : borrowed.gradients;
    return static_cast<int>(std::min<std::int64_t>(most, uses));
  }

  /// Bytes that one of n ranks holds there; p, g, k: all of parameters, gradients, optimizer state.
  constexpr double bytes(Place place, double p, double g, double k, double n) const {
    const auto part = [=](Held how, double all) {
      return place_of(how) != place ? 0 : how == Held::replicated ? all : all / n;
    };
    const double staged = place == Place::host && stages() ? g / n : 0;
    return part(held.parameters, p) + part(held.gradients, g) + part(held.optimizer, k) + staged;
  }
};

/// The card of a run in which that place keeps the optimizer state of a chapter that uses a disk.
constexpr Card with_state(Card card, Place place) {
  if (!card.uses(Place::disk) || place == Place::disk) return card;
  card.held.optimizer = Held::sharded_on_host;
  card.borrowed.pieces = 0;  // the host has all of it
  return card;
}

/// Of bytes(): "p + (g + k)/n"; empty where nothing is held.
inline std::string formula(const Card& card, Place place = Place::device) {
  std::string whole, parts = place == Place::host && card.stages() ? "g" : "";
  const auto add = [](std::string& sum, const std::string& term) {
    sum += (sum.empty() ? "" : " + ") + term;
  };
  const auto& [p, g, k] = card.held;
  for (const auto& [term, how] : {std::pair{"p", p}, {"g", g}, {"k", k}}) {
    if (place_of(how) == place) add(how == Held::replicated ? whole : parts, term);
  }
  if (!parts.empty()) add(whole, (parts.size() > 1 ? "(" + parts + ")" : parts) + "/n");
  return whole;
}

/// When ranks' gradients are added. Runs of a family agree to the bit; with one micro-batch all do.
inline std::string family(const Card& card) {
  return card.sent.backward.a_micro_batch > 0 ? "every micro-batch" : "once a step";
}

namespace cards {
using enum Held;  // in the chapters' cards
}
}  // namespace zero
