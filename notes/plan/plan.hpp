// SPDX-License-Identifier: MIT
// The chapters' formulas side by side, for a model and a number of ranks that need not exist.
#pragma once
#include <optional>
#include <span>

#include "report/prediction.hpp"

namespace zero {
/// The most ranks that are looked at, as of --ranks.
inline constexpr int most_ranks = 1 << 12;

/// What writers count. Bytes a parameter: p of the parameter, those of the dtype, then these.
struct Convention {
  const char* name;
  Costs costs;
  /// An estimator of its own for chapters that gather whole layers: what a parameter costs there,
  /// and bytes an element of the largest layer, which are all that it counts as borrowed. With it
  /// nothing is borrowed elsewhere; without, what the programs borrow.
  struct Gathering {
    Costs costs;
    std::int64_t borrowed;
  };
  std::optional<Gathering> gathering{};
  std::int64_t master_apart = 0;  // bytes, of a master that only Adam on the host needs

  Costs costs_in(const Chapter& chapter) const {
    Costs all = gathering && chapter.prefetch() ? gathering->costs : costs;
    if (chapter.offloads()) all.optimizer += master_apart;
    return all;
  }
};
/// Of a dtype of 16 bits. (ZeRO, arXiv 1910.02054, section 3.1; Megatron-LM's page on its
/// distributed optimizer; DeepSpeed's estimate_zero2_model_states_mem_needs, 2 + 18/N, and
/// estimate_zero3_model_states_mem_needs, 18/N and 4 bytes an element of the largest layer.)
inline constexpr Convention conventions[] = {{"paper", {2, 12}},
                                             {"fp32-gradients", {4, 12}},
                                             {"megatron", {2, 16}},
                                             {"deepspeed", {2, 16}, {{{4, 12}, 4}}}};

struct Question {
  Options options{};  // dtype, accumulate, prefetch; without parameters its task's model and batch
  std::int64_t parameters = 0;  // of any model, in options.layers layers
  std::int64_t largest_layer = 0;  // of it, in elements; 0: all are equal
  Convention convention{"paper", costs_of(Dtype::bf16)};
  Device device = Device::cpu;
  std::int64_t card = 0;  // bytes that a rank has; 0: not asked
  std::int64_t host = 0;  // bytes of its host's that it may take; 0: no end of them
  std::optional<Link> link{};  // of every rank
  double bus = 0;  // GB/s between a rank's card and its host; 0: not asked
  double compute_ms = 0;  // of a step's forward and backward on one rank; 0: not asked
};

/// Throws Error (usage) when so many parameters make no such layers.
Layout layout_of(const Question& question, int ranks);

/// Throws as layout_of and predict do.
Prediction plan(const Question& question, const Chapter& chapter, int ranks);

/// What fits a card, found by trying 1, 2, 3 ... most_ranks.
struct Fit {
  std::optional<int> formula;  // the fewest ranks on which the bytes a parameter alone would fit
  std::optional<int> reserved;  // and on which all does: padding, and what is borrowed, too
  std::int64_t bytes = 0;  // reserved on so many, 0 when there is no such number
  std::int64_t on_host = 0;  // of each of them then
  std::int64_t on_one_less = 0;  // reserved on one rank less, 0 when there is none
  std::int64_t on_every_rank = 0;  // what is left of it however many ranks there are
};
Fit fit(const Question& question, const Chapter& chapter);

/// A chapter's bytes of state a parameter, as "2 + 14/N"; on the host with what is on its way.
std::string state_formula(const Question& question, const Chapter& chapter,
                          Place place = Place::device);
/// Elements sent a parameter, in units of (N - 1)/N, in a step of A micro-batches: as "1 + A".
std::string sent_formula(const Chapter& chapter, Phase phase);
std::string sent_formula(const Chapter& chapter);

/// One chapter's answers.
struct Column {
  const Chapter* chapter;
  Prediction prediction{};
  std::optional<Fit> fit{};  // where there is a card
  std::string state{}, on_host{}, sent{};  // formulas

  bool fits(const Question& question) const;
  std::int64_t reserved(Place place = Place::device) const {
    return prediction.sum(&Prediction::Bytes::peak, place);
  }
  /// The share of all state that a rank's device does not hold.
  double saved(const Question& question) const;
  /// Elements by a rank in a step.
  std::int64_t elements() const;
  /// Of a step's collectives on the question's link.
  double communication_ms(const Question& question) const;
  /// Of a step's copies over the question's bus, 0 without one.
  double copies_ms(const Question& question) const;
  /// Of a step without Adam: nothing beside anything else; and as much as ever can, which is all
  /// where layers are gathered ahead, else nothing.
  double most_step_ms(const Question& question) const;
  double least_step_ms(const Question& question) const;
};

/// All answers, about chapters that can do the dtype.
struct Plan {
  Question question;
  int ranks = 1;
  bool ranks_found = false;  // they were not given: the fewest on which one of the chapters fits
  std::vector<Column> columns{};
};

/// ranks 0: the fewest on which one of the chapters fits the card; when none does, most_ranks.
Plan make_plan(const Question& question, std::span<const Chapter* const> chapters, int ranks);

/// Which chapter to take, and why: one sentence, with --accumulate another on what that costs.
std::string advice(const Plan& plan);

/// For a reader, 80 columns wide; and for a script, everything printed, bytes and elements as exact
/// integers.
void print_plan(const Plan& plan);
std::string json_of(const Plan& plan);

/// What a rank has, as a user names it: "80.00 GB and 256.00 GB of host".
std::string room(const Question& question);

/// Decimal units of bytes.
struct Unit {
  double size;
  const char* name;
};
/// The smallest in which so many are fewer than `below`, of kB to TB.
Unit unit_for(std::int64_t bytes, double below);
/// "12.34" of it.
std::string in_unit(std::int64_t bytes, const Unit& unit);
/// "12.34 GB".
std::string sized(std::int64_t bytes);
}  // namespace zero
