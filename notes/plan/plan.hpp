// SPDX-License-Identifier: MIT
// The chapters' formulas side by side, for a model and a number of ranks that need not exist.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>

#include "report/prediction.hpp"
#include "train/adam.hpp"

namespace zero {
using Json = nlohmann::ordered_json;

/// The most ranks that are looked at, as of --ranks.
inline constexpr int most_ranks = 1 << 12;
inline constexpr std::int64_t most_parameters = 10'000'000'000'000;

using CostsBy = By<Dtype, Costs>;  // fp32, bf16, fp16

/// What writers count.
struct Convention {
  const char* name;
  std::optional<CostsBy> costs{};  // without them: what the programs hold
  /// Of an estimator of its own for chapters that gather whole layers. With it nothing is borrowed
  /// but borrowed_by_gathering there; without, what the programs borrow.
  std::optional<Costs> gathering{};

  Costs costs_in(const Card& chapter, Dtype dtype) const {
    if (gathering && chapter.prefetches()) return *gathering;
    return costs ? (*costs)[dtype] : costs_of(chapter, dtype);
  }
};
/// The first is the programs' own. (ZeRO, arXiv 1910.02054, section 3.1; Megatron-LM's page on its
/// distributed optimizer; DeepSpeed's estimate_zero2_model_states_mem_needs, 2 + 18/N, and
/// estimate_zero3_model_states_mem_needs, 18/N and 4 bytes an element of the largest layer.)
inline constexpr Convention conventions[] = {
    {"paper"},
    {"megatron", CostsBy{{{{4, 8}, {4, 12}, {2, 16}}}}},
    {"deepspeed", CostsBy{{{{}, {2, 16}, {2, 16}}}}, {{4, 12}}}};
inline constexpr std::int64_t borrowed_by_gathering = 4;  // bytes an element of the largest layer

struct Activations {
  std::int64_t bytes = 0;
  std::string formula{};
  std::int64_t by_korthikanti = 0;  // bytes of a Decoder as of any transformer; else 0
};
/// Of a micro-batch of b samples of s tokens in a transformer of width h with a heads, in 16 bits.
/// A layer keeps s b (34 h + 5 a s) bytes. Recomputed in backward: nothing; its attention's
/// matrices, 5 a s; or all from its input, 2 h, where one layer at a time is there in full.
/// (Korthikanti and others, arXiv 2205.05198, sections 4 and 5.) Throws Error (usage) for a word
/// that is none of none, attention, full.
Activations activations_of(std::int64_t layers, std::int64_t s, std::int64_t b, std::int64_t h,
                           std::int64_t a, const std::string& recompute);

/// A model as its config.json says for transformers: llama, mistral, qwen2 or qwen3.
struct Decoder {
  std::string file, type;
  std::int64_t blocks, vocabulary, heads, kv_heads;
  std::int64_t hidden, queries, keys, intermediate;  // numbers of a token
  std::int64_t small;  // parameters of a block's biases, and norms of queries and keys
  bool tied;  // the head is the embedding

  /// Of the embedding, of each block, of the last norm with the head.
  std::vector<std::int64_t> sizes() const;
  std::int64_t parameters() const { return Layout(sizes(), 0, 1).parameters(); }
  /// Bytes of a token that a block keeps, as in common/train/llama.cpp: input, middle, both normed;
  /// queries and what they mix; keys, values; gate, up, product. Other norms are formed again.
  std::int64_t kept() const { return 2 * (4 * hidden + 2 * (queries + keys) + 3 * intermediate); }
  std::int64_t of_pair() const { return 2 * heads; }  // of a token with each of its sample's
  std::int64_t of_logits() const { return 4 * vocabulary; }  // of a token, with their gradient
  /// Of a token beside all blocks: what leaves the last, its norm, a gradient; and in one block's
  /// backward gradients of queries, keys and values, by head and by token, and of its pairs.
  std::int64_t beside() const { return 2 * (3 * hidden + 2 * (queries + 2 * keys)); }
};
/// As above, with all that is beside blocks; of one that is recomputed, its input counts once.
Activations activations_of(const Decoder& model, std::int64_t s, std::int64_t b,
                           const std::string& recompute);

struct Question {
  Options options{};  // dtype, accumulate, prefetch; without parameters its task's model and batch
  std::int64_t parameters = 0;  // of any model, in options.layers layers
  std::int64_t frozen = 0;  // of them: these have no gradients and no optimizer state
  std::int64_t largest_layer = 0;  // of it, in elements; 0: all are equal
  std::optional<Decoder> model{};  // whose parameters and layers these are
  Convention convention = conventions[0];
  DeviceType device = DeviceType::cpu;
  Activations activations{};  // of it: they are a rank's own
  std::int64_t card = 0;  // bytes that a rank has; 0: not asked
  std::int64_t headroom = 0;  // of them, for what no plan knows
  std::int64_t host = 0;  // bytes of its host's that it may take; 0: no end of them
  std::optional<Link> link{};  // of every rank
  double bus = 0;  // GB/s between a rank's card and its host; 0: not asked
  double compute_ms = 0;  // of a step's forward and backward on one rank; 0: not asked

  double frozen_share() const {
    return frozen > 0 ? static_cast<double>(frozen) / static_cast<double>(parameters) : 0;
  }
  Costs costs(const Card& chapter) const { return convention.costs_in(chapter, options.dtype); }
};

/// How the trained part of each layer is cut, and, where there are any, the frozen one: each is
/// padded by itself. Throws Error (usage) when so many parameters make no such layers.
std::vector<Layout> layouts_of(const Question& question, int ranks);

/// Of all parameters, with what a step sends and copies; the factors are the trained ones'.
struct Plan : Prediction {
  Traffic step{};
};
/// Throws as layouts_of and predict do.
Plan plan(const Question& question, const Card& chapter, int ranks);

/// What fits the card, found by trying 1, 2, 3 ... most_ranks, in bytes where no ranks are counted:
///   fewest_ranks             on which all fits: padding, and what is borrowed, too; null: none
///   fewest_ranks_by_formula  on which the bytes a parameter alone would
///   reserved_then, on_host_then, reserved_on_one_less  of a rank, 0 where there is no such number
///   on_every_rank            what is left of it however many ranks there are
Json fit(const Question& question, const Card& chapter);

/// A chapter's bytes of state a parameter, as "2 + 14/N"; on the host with what is on its way.
std::string state_formula(const Question& question, const Card& chapter,
                          Place place = Place::device, bool of_frozen = false);
/// Elements sent a parameter, in units of (N - 1)/N, in a step of A micro-batches, as "1 + A": in
/// these phases.
std::string sent_formula(const Card& chapter, std::span<const Phase> phases = step_phases);

/// All answers, as --json prints them, bytes and elements in exact integers; about chapters that
/// can do the dtype. ranks 0: the fewest on which one of the chapters fits the card; when none
/// does, most_ranks.
Json make_plan(const Question& question, Cards chapters, int ranks);

/// Which chapter to take, and why: one sentence, with --accumulate another on what that costs.
std::string advice(const Json& plan);

/// That fit says; more than most_ranks for none.
inline int ranks_needed(const Json& fit) {
  return fit["fewest_ranks"].is_null() ? most_ranks + 1 : fit["fewest_ranks"].get<int>();
}

/// The cards as JSON: what they say, and what it means as a formula.
Json cards_json(Cards chapters);

/// A configuration of DeepSpeed: what its keys are here, and the options that say the same on so
/// many ranks; 0: not known, below 0: --accumulate is said, and needs none. Throws Error: data, for
/// no such file; usage, when it takes ranks.
Json read_deepspeed(const std::string& path, int ranks);

/// Throws Error (data) for a file that is none, or of a model that has no plan here.
Decoder read_config(const std::string& path);

/// The plan in columns, 80 characters wide, after what --deepspeed and --config said.
void print_plan(const Question& question, const Json& plan);
}  // namespace zero
