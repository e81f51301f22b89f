// SPDX-License-Identifier: MIT
#include "memory/ledger.hpp"

#include <algorithm>

namespace zero {

void Ledger::reserve(Kind kind, std::int64_t bytes, bool held) {
  entry(kind).reserved += bytes;
  if (!held) return;
  entry(kind).resident += bytes;
  take(kind, bytes);
}

void Ledger::unreserve(Kind kind, std::int64_t bytes, bool held) {
  entry(kind).reserved -= bytes;
  if (!held) return;
  entry(kind).resident -= bytes;
  give_back(kind, bytes);
}

void Ledger::take(Kind kind, std::int64_t bytes) {
  KindBytes& booked = entry(kind);
  booked.now += bytes;
  booked.peak = std::max(booked.peak, booked.now);
  peak_of_total_ = std::max(peak_of_total_, now());
}

void Ledger::give_back(Kind kind, std::int64_t bytes) {
  entry(kind).now -= bytes;
}

std::int64_t Ledger::reserved() const {
  std::int64_t sum = 0;
  for (const KindBytes& kind : kinds_) sum += kind.reserved;
  return sum;
}

std::int64_t Ledger::now() const {
  std::int64_t sum = 0;
  for (const KindBytes& kind : kinds_) sum += kind.now;
  return sum;
}

void Ledger::restart_peaks() {
  for (KindBytes& kind : kinds_) kind.peak = kind.now;
  peak_of_total_ = now();
}

Ledger& ledger() {
  static Ledger of_this_process;
  return of_this_process;
}

}  // namespace zero
