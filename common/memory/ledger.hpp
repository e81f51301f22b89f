// SPDX-License-Identifier: MIT
// A ledger of tensor memory: bytes by kind, reserved, resident, now and at the peak.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "memory/names.hpp"

namespace zero {
enum class Kind { parameters, gradients, optimizer, communication, activations, workspace, data };
template <>
inline constexpr std::array names_of<Kind>{"parameters",  "gradients", "optimizer", "communication",
                                           "activations", "workspace", "data"};

/// All in bytes.
struct KindBytes {
  std::int64_t reserved = 0;  // taken from the system, at construction, never inside a step
  std::int64_t resident = 0;  // the part of it that is held throughout
  std::int64_t now = 0;  // resident plus what is in use at the moment
  std::int64_t peak = 0;  // the largest `now` so far
};

/// The thread that puts work on a stream books its bytes then, not when the stream does the work:
/// so the figures do not depend on scheduling. No other thread may use a ledger.
class Ledger {
 public:
  /// Books memory from the system; `held`: resident and in use from now on. Negative: it goes back.
  void reserve(Kind kind, std::int64_t bytes, bool held) {
    kinds_[kind].reserved += bytes;
    if (!held) return;
    kinds_[kind].resident += bytes;
    book(kind, bytes);
  }
  /// Books what is in use for a while; negative bytes no longer are.
  void book(Kind kind, std::int64_t bytes) {
    KindBytes& booked = kinds_[kind];
    booked.now += bytes;
    booked.peak = std::max(booked.peak, booked.now);
    peak_of_total_ = std::max(peak_of_total_, sum(&KindBytes::now));
  }

  const KindBytes& of(Kind kind) const { return kinds_[kind]; }
  /// Peak of the sum over kinds; the kinds' own peaks need not fall into the same moment.
  std::int64_t peak_of_total() const { return peak_of_total_; }
  std::int64_t reserved() const { return sum(&KindBytes::reserved); }
  /// Forgets all peaks: each begins again at what is in use now.
  void restart_peaks() {
    for (KindBytes& kind : kinds_.all) kind.peak = kind.now;
    peak_of_total_ = sum(&KindBytes::now);
  }

 private:
  std::int64_t sum(std::int64_t KindBytes::*figure) const {
    std::int64_t sum = 0;
    for (const KindBytes& kind : kinds_) sum += kind.*figure;
    return sum;
  }

  By<Kind, KindBytes> kinds_{};
  std::int64_t peak_of_total_ = 0;
};
}  // namespace zero
