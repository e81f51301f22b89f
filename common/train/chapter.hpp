// SPDX-License-Identifier: MIT
// A chapter's card, which stands in its trainer: its name, what it may be asked for, its formulas.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace zero {
/// Elements sent a parameter and step, in units of (n - 1) / n.
struct Traffic {
  double forward, backward, update;
};

/// Whole layers that are in use beside what is held: of parameters, of gradients.
struct WholeLayers {
  int params, grads;
};

/// Elements copied a parameter of the rank's shard and step: to the host, and, but in a skipped
/// step, to the device.
struct Copies {
  std::int64_t down, up;
};

/// What lies with the host beside the device, and what passes between the two.
struct Offload {
  /// Bytes, in the terms of Chapter::state_bytes. g: page-locked, for gradients on their way down
  /// and parameters on their way up.
  double (*bytes)(double p, double g, double k, double n) = nullptr;
  Copies copied{};
};

struct Chapter {
  const char* name;
  bool ranks = true;  // runs on MPI ranks
  bool mixed_precision = false;  // has --dtype and --loss-scale
  /// Bytes on the device of one of n ranks, when all parameters, gradients, optimizer state are p,
  /// g, k bytes.
  double (*state_bytes)(double p, double g, double k, double n) = nullptr;
  /// In a step of a micro-batches.
  Traffic (*elements_sent)(double a) = [](double) { return Traffic(0, 0, 0); };
  WholeLayers (*whole_layers)(int prefetch) = [](int) { return WholeLayers(0, 0); };
  Offload offload{};

  /// Has --prefetch: its window depends on it.
  constexpr bool prefetch() const { return whole_layers(1).params != whole_layers(0).params; }
  /// Adam runs on the host, which has master weights of its own in every dtype.
  constexpr bool offloads() const { return offload.bytes != nullptr; }
};

/// The cards of those that run on ranks, in their order. Defined outside common/, beside them.
std::span<const Chapter* const> chapters_on_ranks();

/// "once a step" or "every micro-batch": when the ranks' gradients are added. Within a family runs
/// agree to the last bit; with one micro-batch a step there is one family.
inline std::string family(const Chapter& chapter) {
  const bool grows = chapter.elements_sent(2).backward > chapter.elements_sent(1).backward;
  return grows ? "every micro-batch" : "once a step";
}
}  // namespace zero
