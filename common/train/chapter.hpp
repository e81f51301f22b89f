// SPDX-License-Identifier: MIT
// A chapter's card, which stands in its trainer: its name, what it may be asked for, its formulas.
#pragma once
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

struct Chapter {
  const char* name;
  bool ranks = true;  // runs on MPI ranks
  bool mixed_precision = false;  // has --dtype and --loss-scale
  /// Bytes on one of n ranks, when all parameters, gradients, optimizer state are p, g, k bytes.
  double (*state_bytes)(double p, double g, double k, double n) = nullptr;
  /// In a step of a micro-batches.
  Traffic (*elements_sent)(double a) = [](double) { return Traffic(0, 0, 0); };
  WholeLayers (*whole_layers)(int prefetch) = [](int) { return WholeLayers(0, 0); };

  /// Has --prefetch: its window depends on it.
  constexpr bool prefetch() const { return whole_layers(1).params != whole_layers(0).params; }
};

/// "once a step" or "every micro-batch": when the ranks' gradients are added. Within a family runs
/// agree to the last bit; with one micro-batch a step there is one family.
inline std::string family(const Chapter& chapter) {
  const bool grows = chapter.elements_sent(2).backward > chapter.elements_sent(1).backward;
  return grows ? "every micro-batch" : "once a step";
}
}  // namespace zero
