// SPDX-License-Identifier: MIT
// The numbers of a plan.
#include "notes/plan/plan.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
using Bytes = Prediction::Bytes;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// "a + b/N" and the like: a constant and a multiple of something, without what is 0.
std::string sum_of(double constant, double multiple, const char* of) {
  const std::string first = constant != 0 ? fmt::format("{:g}", constant) : "";
  if (multiple == 0) return first.empty() ? "0" : first;
  const bool divides = *of == '/';
  const std::string second = (multiple == 1 && !divides ? "" : fmt::format("{:g}", multiple)) + of;
  return first.empty() ? second : first + " + " + second;
}

/// Bytes on one of so many ranks of the state of `parameters` parameters.
double state_of(const Question& question, const Card& chapter, double parameters, double ranks,
                Place place = Place::device) {
  const auto all = [&](std::int64_t each) { return parameters * static_cast<double>(each); };
  const auto [grads, optimizer] = question.costs(chapter);
  return chapter.bytes(place, all(bytes_of(question.options.dtype)), all(grads), all(optimizer),
                       ranks);
}

bool has(const Question& question, auto on_device, auto on_host) {
  return on_device <= static_cast<decltype(on_device)>(question.card) &&
         (question.host == 0 || on_host <= static_cast<decltype(on_host)>(question.host));
}

/// Of one step's collectives on the link, one after the other: each layer by itself, as often as
/// the factor says; the update's begin with the sums.
Milliseconds time_of(const Prediction& on, Phase phase, const Question& question,
                     const Layout& layout) {
  std::chrono::duration<double> all_layers{}, sums{};
  for (int l = 0; l < layout.layers(); ++l) {
    all_layers +=
        question.link->time(bytes_of(question.options.dtype) * layout.layer_size(l), on.ranks);
  }
  const std::int64_t two = 2 * sizeof(double);
  if (phase == Phase::update) sums = question.link->time(two * on.ranks, on.ranks);
  return sums + on.factors[phase] * all_layers;
}

/// Of so many ranks.
Json answers(const Question& question, const Card& chapter, int ranks) {
  const Layout layout = layout_of(question, ranks);
  const Prediction on = plan(question, chapter, ranks);
  const Prediction::Passed passed = on.passed({});
  const Costs costs = question.costs(chapter);
  const std::int64_t on_device = on.sum(&Bytes::peak), on_host = on.sum(&Bytes::peak, Place::host);
  const std::int64_t w = bytes_of(question.options.dtype);
  const std::int64_t elements = std::reduce(passed.sent.begin(), passed.sent.end());
  Card on_device_alone = chapter;  // a master apart is a price of offloading, not saved state
  on_device_alone.held.optimizer = Held::shard;
  const Costs unshared = question.costs(on_device_alone);
  const auto all = static_cast<double>(w + unshared.grads + unshared.optimizer);
  Json json{{"name", chapter.name},
            {"bytes_a_parameter", {w, costs.grads, costs.optimizer}},
            {"state_formula", state_formula(question, chapter)},
            {"state_saved", 1 - state_of(question, chapter, 1, ranks) / all},
            {"resident", on.sum(&Bytes::resident)},
            {"reserved", on_device},
            {"reserved_by_all_ranks", ranks * on_device},
            {"host_formula", state_formula(question, chapter, Place::host)},
            {"on_host", on_host},
            {"on_host_by_all_ranks", ranks * on_host},
            {"sent_formula", sent_formula(chapter)},
            {"sent_elements", elements},
            {"sent_bytes", w * elements},
            {"padding_sent_by_all_ranks", passed.padding},
            {"scalars_sent", passed.scalars}};
  for (const Kind kind : every<Kind>) {
    const Bytes& here = on.bytes[Place::device][kind];
    json["kinds"][name_of(kind)] = {{"resident", here.resident}, {"peak", here.peak}};
    const std::int64_t there = on.bytes[Place::host][kind].peak;
    if (there > 0) json["host_kinds"][name_of(kind)] = there;
  }
  for (const Direction way : every<Direction>) json["copied"][name_of(way)] = passed.copied[way];
  double copies = 0, messages = 0;  // milliseconds
  if (question.bus > 0) {
    const std::int64_t copied = std::reduce(passed.copied.begin(), passed.copied.end());
    json["copies_ms"] = copies = static_cast<double>(copied) / question.bus / 1e6;
  }
  for (const Phase phase : step_phases) {
    Json& row = json["phases"][name_of(phase)];
    row = {{"formula", sent_formula(chapter, {&phase, 1})},
           {"elements", passed.sent[phase]},
           {"collectives", static_cast<std::int64_t>(on.factors[phase]) * layout.layers()}};
    if (!question.link) continue;
    row["ms"] = time_of(on, phase, question, layout).count();
    messages += row["ms"].get<double>();
  }
  if (question.link) {
    // Where layers are gathered ahead, the last reduce-scatter alone has no computation beside it:
    // layer 0's. (The first gather may pass beside the update of the other layers;
    // notes/streams.md)
    const bool ahead = chapter.prefetches() && question.options.prefetch > 0;
    const Milliseconds last = question.link->time(w * layout.layer_size(0), ranks);
    const double alone = ahead ? last.count() : messages, compute = question.compute_ms;
    json["communication_ms"] = messages;
    json["step_ms"] = {// without Adam
                       {"at_most", messages + compute + copies},
                       {"at_best", std::max(alone + std::max(messages - alone, compute), copies)}};
  }
  if (question.card > 0) json["fits"] = has(question, on_device, on_host);
  return json;
}
}  // namespace

Layout layout_of(const Question& question, int ranks) {
  if (question.parameters == 0) return layout_of(question.options, 0, ranks);
  std::int64_t layers = question.options.layers, rest = question.parameters;
  std::vector<std::int64_t> sizes;
  const std::int64_t largest = question.largest_layer;
  if (largest > 0) {
    const std::int64_t others = rest - largest;
    throw_if(others < layers - 1 || others > (layers - 1) * largest, ExitCode::usage,
             "{} cannot be {} of which the largest has {}: the others would have {}",
             counted(rest, "parameter"), counted(layers, "layer"), grouped(largest),
             grouped(others));
    sizes.push_back(largest);
    rest -= largest, --layers;
  }
  throw_if(rest < layers, ExitCode::usage, "{} cannot fill {}: say fewer --layers",
           counted(rest, "parameter"), counted(layers, "layer"));
  for (std::int64_t l = 0; l < layers; ++l) sizes.push_back(rest / layers + (l < rest % layers));
  return Layout(std::move(sizes), 0, ranks);
}

Prediction plan(const Question& question, const Card& chapter, int ranks) {
  const Layout layout = layout_of(question, ranks);
  const Options& options = question.options;
  if (question.parameters == 0) return predict(chapter, options, question.device, layout);
  Prediction plan =
      predict_state(chapter, options, question.device, layout, question.costs(chapter));
  if (!question.convention.gathering) return plan;
  auto& here = plan.bytes[Place::device];
  for (Bytes& kind : here) kind = {kind.resident, kind.resident};
  if (chapter.prefetches()) {
    here[Kind::parameters].peak += borrowed_by_gathering * layout.largest_layer();
  }
  return plan;
}

Json fit(const Question& question, const Card& chapter) {
  const auto fewest = [&](auto bytes) -> Json {
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      if (has(question, bytes(ranks, Place::device), bytes(ranks, Place::host))) return ranks;
    }
    return {};
  };
  const auto parameters = static_cast<double>(layout_of(question, 1).parameters());
  const Json by_formula = fewest([&](int ranks, Place place) {
    return state_of(question, chapter, parameters, ranks, place);
  });
  const auto bytes = [&](int ranks, Place place) {
    return ranks > 0 ? plan(question, chapter, ranks).sum(&Bytes::peak, place) : 0;
  };
  const Json by_all = fewest(bytes);
  const int ranks = by_all.is_null() ? 0 : by_all.get<int>();
  const Prediction many = plan(question, chapter, most_ranks);
  const auto all = static_cast<double>(many.padded);
  const double shared = state_of(question, chapter, all, most_ranks) -
                        state_of(question, chapter, all, std::numeric_limits<double>::infinity());
  return {{"fewest_ranks", by_all},
          {"fewest_ranks_by_formula", by_formula},
          {"reserved_then", bytes(ranks, Place::device)},
          {"on_host_then", bytes(ranks, Place::host)},
          {"reserved_on_one_less", bytes(ranks - 1, Place::device)},
          {"on_every_rank", many.sum(&Bytes::peak) - static_cast<std::int64_t>(shared)}};
}

std::string state_formula(const Question& question, const Card& chapter, Place place) {
  const auto on = [&](double ranks) { return state_of(question, chapter, 1, ranks, place); };
  const double whole = on(std::numeric_limits<double>::infinity());
  return sum_of(whole, on(1) - whole, "/N");
}

std::string sent_formula(const Card& chapter, std::span<const Phase> phases) {
  Often all;
  for (const Phase phase : phases) {
    const Often& sent = chapter.sent_in(phase);
    all = {all.a_step + sent.a_step, all.a_micro_batch + sent.a_micro_batch};
  }
  return sum_of(all.a_step, all.a_micro_batch, "A");
}

Json cards_json(Cards chapters) {
  Json all;
  for (const Card* chapter : chapters) {
    const Card& card = *chapter;
    const auto& [p, g, k] = card.held;
    const auto& [parameters, and_prefetched, gradients] = card.borrowed;
    const Json borrowed = {
        {"parameters", parameters}, {"and_prefetched", and_prefetched}, {"gradients", gradients}};
    Json sent;
    for (const Phase phase : step_phases) sent[name_of(phase)] = sent_formula(card, {&phase, 1});
    all.push_back(
        {{"name", card.name},
         {"ranks", card.ranks},
         {"mixed_precision", card.mixed_precision},
         {"held",
          {{"parameters", name_of(p)}, {"gradients", name_of(g)}, {"optimizer", name_of(k)}}},
         {"bytes", {{"device", formula(card)}, {"host", formula(card, Place::host)}}},
         {"sent", sent},
         {"borrowed", borrowed},
         {"copied", {{"down", card.copied.down}, {"up", card.copied.up}}}});
  }
  return all;
}

Json make_plan(const Question& question, Cards chapters, int ranks) {
  const bool found = ranks == 0;
  if (found) ranks = most_ranks;
  std::vector<std::pair<const Card*, Json>> columns;  // and what fits the card
  for (const Card* chapter : chapters) {
    if (!chapter->mixed_precision && needs_master(question.options.dtype)) continue;
    Json& fits = columns.emplace_back(chapter, Json::object()).second;
    if (question.card > 0) fits = fit(question, *chapter);
    if (found && !fits["fewest_ranks"].is_null()) {
      ranks = std::min<int>(ranks, fits["fewest_ranks"]);
    }
  }
  const Layout layout = layout_of(question, ranks);
  Json json{{"parameters", layout.parameters()},
            {"padded_parameters", layout.full_size()},
            {"checkpoint", checkpoint_bytes * layout.parameters()},
            {"layers", layout.layers()},
            {"largest_layer", layout.largest_layer()},
            {"ranks", ranks},
            {"ranks_found", found},
            {"dtype", name_of(question.options.dtype)},
            {"device", name_of(question.device)},
            {"accumulate", question.options.accumulate},
            {"prefetch", question.options.prefetch},
            {"convention", question.convention.name},
            {"chapters", Json::array()}};
  for (const auto& [chapter, fits] : columns) {
    Json column = answers(question, *chapter, ranks);
    column.update(fits);
    json["chapters"].push_back(column);
  }
  if (question.card > 0) {
    json["card"] = question.card;
    json["host"] = question.host > 0 ? Json(question.host) : Json();
    json["advice"] = advice(json);
  }
  if (question.link) {
    json["link"] = {{"gbit_per_s", question.link->gbit_per_s},
                    {"latency_us", question.link->latency_us}};
    json["compute_ms"] = question.compute_ms;
  }
  if (question.bus > 0) json["bus_gb_per_s"] = question.bus;
  return json;
}
}  // namespace zero
