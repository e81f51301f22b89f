// SPDX-License-Identifier: MIT
// The chapters' formulas side by side, for a model and a number of ranks that need not exist.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "report/prediction.hpp"

namespace zero {
using Json = nlohmann::ordered_json;

/// The most ranks that are looked at, as of --ranks.
inline constexpr int most_ranks = 1 << 12;

/// What writers count.
struct Convention {
  const char* name;
  std::optional<Costs> costs{};  // without them: what the programs hold
  /// An estimator of its own for chapters that gather whole layers: what a parameter costs there.
  /// With it borrowed_by_gathering is all that is borrowed there, and nothing is elsewhere;
  /// without, what the programs borrow.
  std::optional<Costs> gathering{};

  Costs costs_in(const Card& chapter, Dtype dtype) const {
    if (gathering && chapter.prefetches()) return *gathering;
    return costs.value_or(costs_of(chapter, dtype));
  }
};
/// Of a dtype of 16 bits; the first is the programs' own, of fp32 too. (ZeRO, arXiv 1910.02054,
/// section 3.1; Megatron-LM's page on its distributed optimizer; DeepSpeed's
/// estimate_zero2_model_states_mem_needs, 2 + 18/N, and estimate_zero3_model_states_mem_needs, 18/N
/// and 4 bytes an element of the largest layer.)
inline constexpr Convention conventions[] = {{"paper"},
                                             {"fp32-gradients", {{4, 12}}},
                                             {"megatron", {{2, 16}}},
                                             {"deepspeed", {{2, 16}}, {{4, 12}}}};
inline constexpr std::int64_t borrowed_by_gathering = 4;  // bytes an element of the largest layer

struct Question {
  Options options{};  // dtype, accumulate, prefetch; without parameters its task's model and batch
  std::int64_t parameters = 0;  // of any model, in options.layers layers
  std::int64_t largest_layer = 0;  // of it, in elements; 0: all are equal
  Convention convention = conventions[0];
  DeviceType device = DeviceType::cpu;
  std::int64_t card = 0;  // bytes that a rank has; 0: not asked
  std::int64_t host = 0;  // bytes of its host's that it may take; 0: no end of them
  std::optional<Link> link{};  // of every rank
  double bus = 0;  // GB/s between a rank's card and its host; 0: not asked
  double compute_ms = 0;  // of a step's forward and backward on one rank; 0: not asked

  Costs costs(const Card& chapter) const { return convention.costs_in(chapter, options.dtype); }
};

/// Throws Error (usage) when so many parameters make no such layers.
Layout layout_of(const Question& question, int ranks);

/// Throws as layout_of and predict do.
Prediction plan(const Question& question, const Card& chapter, int ranks);

/// What fits the card, found by trying 1, 2, 3 ... most_ranks, in bytes where no ranks are counted:
///   fewest_ranks             on which all fits: padding, and what is borrowed, too; null: none
///   fewest_ranks_by_formula  on which the bytes a parameter alone would
///   reserved_then, on_host_then, reserved_on_one_less  of a rank, 0 where there is no such number
///   on_every_rank            what is left of it however many ranks there are
Json fit(const Question& question, const Card& chapter);

/// A chapter's bytes of state a parameter, as "2 + 14/N"; on the host with what is on its way.
std::string state_formula(const Question& question, const Card& chapter,
                          Place place = Place::device);
/// Elements sent a parameter, in units of (N - 1)/N, in a step of A micro-batches, as "1 + A": in
/// these phases.
std::string sent_formula(const Card& chapter, std::span<const Phase> phases = step_phases);

/// All answers, as --json prints them, bytes and elements in exact integers; about chapters that
/// can do the dtype. ranks 0: the fewest on which one of the chapters fits the card; when none
/// does, most_ranks.
Json make_plan(const Question& question, Cards chapters, int ranks);

/// Which chapter to take, and why: one sentence, with --accumulate another on what that costs.
std::string advice(const Json& plan);

/// The cards as JSON: what they say, and what it means as a formula.
Json cards_json(Cards chapters);

/// The plan in columns, 80 characters wide.
void print_plan(const Question& question, const Json& plan);
}  // namespace zero
