// SPDX-License-Identifier: MIT
// Counts the bytes of a device's tensors by kind: reserved, resident, in use now and at the peak.
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

struct KindBytes {
  std::int64_t reserved = 0;  // allocated, all of them before the first step
  std::int64_t resident = 0;  // the part of `reserved` that is in use throughout the run
  std::int64_t now = 0;  // resident bytes, and those that are lent at this moment
  std::int64_t peak = 0;  // the largest `now` so far
};

/// Only the trainer's thread uses it, and books a task's bytes when it puts the task on a stream,
/// not when the stream runs the task. So the figures do not depend on scheduling.
class Ledger {
 public:
  /// Books allocated bytes; negative: freed ones. resident: they are in use from now on.
  void reserve(Kind kind, std::int64_t bytes, bool resident) {
    kinds_[kind].reserved += bytes;
    if (!resident) return;
    kinds_[kind].resident += bytes;
    book(kind, bytes);
  }
  /// Books bytes that are lent; negative: bytes that are given back.
  void book(Kind kind, std::int64_t bytes) {
    KindBytes& booked = kinds_[kind];
    booked.now += bytes;
    booked.peak = std::max(booked.peak, booked.now);
    peak_of_total_ = std::max(peak_of_total_, sum(&KindBytes::now));
  }

  const KindBytes& of(Kind kind) const { return kinds_[kind]; }
  /// Returns the peak of the sum over all kinds, whose own peaks may be at different moments.
  std::int64_t peak_of_total() const { return peak_of_total_; }
  std::int64_t reserved() const { return sum(&KindBytes::reserved); }
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
