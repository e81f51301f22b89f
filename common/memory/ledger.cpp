// SPDX-License-Identifier: MIT
#include "memory/ledger.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <fstream>
#include <string>

#include "memory/device.hpp"
#include "memory/error.hpp"

namespace zero {

namespace {

/// The figure behind `label`, which the kernel gives in KiB, in bytes; 0 where it gives none.
std::int64_t kernel_figure(const char* file, const std::string& label) {
  std::ifstream lines(file);
  for (std::string word; lines >> word;) {
    std::int64_t kibibytes = 0;
    if (word == label && lines >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

}  // namespace

void Ledger::reserve(Kind kind, std::int64_t bytes, bool held) {
  const std::int64_t has = device_bytes();
  if (bytes > has - reserved()) {
    throw Error(ExitCode::resources,
                fmt::format("{} needs {} bytes, {} are already reserved, the {} has {}: use fewer "
                            "or narrower layers, or more ranks",
                            name_of(kind),
                            bytes,
                            reserved(),
                            current_device() == Device::cpu ? "machine" : "GPU",
                            has));
  }
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

std::int64_t process_peak_bytes() {
  return kernel_figure("/proc/self/status", "VmHWM:");
}

}  // namespace zero
