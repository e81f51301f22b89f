// SPDX-License-Identifier: MIT
// Predictions: what a chapter's own formulas say about bytes held and elements sent.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "train/options.hpp"

namespace zero {

/// Elements sent a parameter and step, in units of (N - 1) / N.
struct Traffic {
  double forward, backward, update;
};

/// Whole layers that are borrowed beside what is held.
struct WholeLayers {
  int params, grads;
};

/// The formulas that stand in a chapter's trainer.
struct Formulas {
  double (*state_bytes)(double p, double g, double k, double n);
  Traffic (*elements_sent)(double micro_batches);
  WholeLayers (*whole_layers)(int prefetch);
};

template <class Trainer>
constexpr Formulas formulas_of() {
  return {Trainer::state_bytes, Trainer::elements_sent, Trainer::whole_layers};
}

/// Bytes a parameter of Adam's state: momentum and variance, and the master weights where the
/// parameters are not fp32 themselves.
constexpr std::int64_t optimizer_bytes(Dtype dtype) {
  return dtype == Dtype::fp32 ? 8 : 12;
}

/// What one rank is going to hold and send.
struct Prediction {
  struct Bytes {
    std::int64_t resident = 0;
    std::int64_t peak = 0;  // of this kind; equals what is reserved
  };
  std::array<Bytes, kind_count> bytes{};

  /// For `steps` steps of which `skipped` had no update.
  std::int64_t sent(Phase phase, std::int64_t steps, std::int64_t skipped) const;
  /// All ranks together.
  std::int64_t padding_sent(std::int64_t steps, std::int64_t skipped) const;
  std::int64_t scalars_sent(std::int64_t steps) const { return steps * 2 * (ranks - 1); }

  Traffic factors{};
  std::int64_t parameters = 0;
  std::int64_t padded = 0;
  std::int64_t ranks = 1;
};

/// file_bytes: length of the text of task text.
Prediction predict(const Formulas& formulas,
                   const Options& options,
                   const Layout& layout,
                   std::int64_t file_bytes);

/// Throws Error (resources) when what the run is going to reserve, on each of `sharing` ranks that
/// share a machine's memory or a GPU's, is more than is available there now. Better here than when
/// the kernel ends a rank. Returns the bytes of one rank.
std::int64_t check_memory(const Formulas& formulas, const Options& options, int ranks, int sharing);

/// "once a step" or "every micro-batch": when the ranks' gradients are added. Within a family runs
/// agree to the last bit; with one micro-batch a step there is one family.
std::string family(const Formulas& formulas);

/// What can be answered without the other ranks: --help, --plan, a bad command line. Prints it and
/// returns the exit code; nothing when the program should go on.
std::optional<int> answer_alone(const Command& command,
                                const Chapter& chapter,
                                const Formulas& formulas);

}  // namespace zero
