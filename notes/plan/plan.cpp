// SPDX-License-Identifier: MIT
// The numbers of a plan.
#include "notes/plan/plan.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "memory/throw_if.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
using Bytes = Prediction::Bytes;
using Traffic = Prediction::Traffic;
constexpr std::int64_t bytes_of_sum = sizeof(double);
constexpr double no_end = std::numeric_limits<double>::infinity();
using Milliseconds = std::chrono::duration<double, std::milli>;

/// "a + b/N" and the like: a constant and a multiple of something, without what is 0.
std::string sum_of(double constant, double multiple, const char* of) {
  const std::string first = constant != 0 ? fmt::format("{:g}", constant) : "";
  if (multiple == 0) return first.empty() ? "0" : first;
  const bool divides = *of == '/';
  const std::string second = (multiple == 1 && !divides ? "" : fmt::format("{:g}", multiple)) + of;
  return first.empty() ? second : first + " + " + second;
}

/// The chapter, for parameters that are not trained: of its messages only gathers before computing
/// are left, in backward all but the one reduce-scatter of a micro-batch.
Card frozen(Card chapter) {
  const double backward = std::max(0., chapter.sent.backward.a_micro_batch - 1);
  chapter.sent = {.forward = chapter.sent.forward, .backward = each_micro_batch(backward)};
  chapter.copied = {};
  return chapter;
}

/// Bytes on one of so many ranks of the state of `parameters`, of which such a share is frozen.
double state_of(const Question& question, const Card& chapter, double parameters, double share,
                double ranks, Place place = Place::device) {
  const auto [grads, optimizer] = question.costs(chapter);
  const double w = bytes_of(question.options.dtype) * parameters;
  const double trained = parameters * (1 - share);
  return chapter.bytes(place, w, trained * grads, trained * optimizer, ranks);
}

bool has(const Question& question, std::int64_t card, double on_device, double on_host) {
  return on_device <= card && (question.host == 0 || on_host <= question.host);
}

/// Of one step's collectives on the link, one after the other: each layer by itself.
double milliseconds(const Link& link, std::int64_t collectives, std::int64_t bytes, int ranks) {
  const Milliseconds begin = link.time(0, ranks);
  const Milliseconds send = Link{link.gbit_per_s, 0}.time(2 * bytes, 2);  // to one, its half
  return static_cast<double>(collectives) * begin.count() + send.count();
}

/// Of so many ranks.
Json answers(const Question& question, const Card& chapter, int ranks) {
  const Layout trained = layouts_of(question, ranks)[0];
  const Plan on = plan(question, chapter, ranks);
  const Traffic& traffic = on.step;
  const Costs costs = question.costs(chapter);
  const std::int64_t on_device = on.sum(&Bytes::peak), on_host = on.sum(&Bytes::peak, Place::host);
  const std::int64_t w = bytes_of(question.options.dtype);
  const std::int64_t elements = std::reduce(traffic.sent.begin(), traffic.sent.end());
  Card unshared = chapter;
  unshared.held = {};  // a master apart is a price of offloading, not saved state
  const double share = question.frozen_share();
  Json json{{"name", chapter.name},
            {"bytes_a_parameter", {w, costs.grads, costs.optimizer}},
            {"state_formula", state_formula(question, chapter)},
            {"frozen_formula", state_formula(question, chapter, Place::device, true)},
            {"state_saved", 1 - state_of(question, chapter, 1, share, ranks) /
                                    state_of(question, unshared, 1, share, 1)},
            {"resident", on.sum(&Bytes::resident)},
            {"reserved", on_device},
            {"reserved_by_all_ranks", ranks * on_device},
            {"host_formula", state_formula(question, chapter, Place::host)},
            {"on_host", on_host},
            {"on_host_by_all_ranks", ranks * on_host},
            {"sent_formula", sent_formula(chapter)},
            {"frozen_sent_formula", sent_formula(frozen(chapter))},
            {"sent_elements", elements},
            {"sent_bytes", w * elements},
            {"padding_sent_by_all_ranks", traffic.padding},
            {"scalars_sent", traffic.scalars}};
  for (const Kind kind : every<Kind>) {
    const Bytes& here = on.bytes[Place::device][kind];
    json["kinds"][name_of(kind)] = {{"resident", here.resident}, {"peak", here.peak}};
    const std::int64_t there = on.bytes[Place::host][kind].peak;
    if (there > 0) json["host_kinds"][name_of(kind)] = there;
  }
  for (const Direction way : every<Direction>) json["copied"][name_of(way)] = traffic.copied[way];
  double copies = 0, messages = 0;  // milliseconds
  if (question.bus > 0) {
    copies = std::reduce(traffic.copied.begin(), traffic.copied.end()) / question.bus / 1e6;
    json["copies_ms"] = copies;
  }
  for (const Phase phase : step_phases) {
    const std::int64_t factor = ranks > 1 ? static_cast<std::int64_t>(on.factors[phase]) : 0;
    const std::int64_t collectives = factor * trained.layers();
    Json& row = json["phases"][name_of(phase)];
    row = {{"formula", sent_formula(chapter, {&phase, 1})},
           {"elements", traffic.sent[phase]},
           {"collectives", collectives}};
    if (!question.link) continue;
    const bool sums = phase == Phase::update && ranks > 1;
    const std::int64_t bytes = w * traffic.sent[phase] + sums * traffic.scalars * bytes_of_sum;
    const double ms = milliseconds(*question.link, collectives + sums, bytes, ranks);
    row["ms"] = ms;
    messages += ms;
  }
  if (question.link) {
    // Where layers are gathered ahead, the last reduce-scatter alone has no computation beside it:
    // layer 0's. (The first gather may pass beside the update of the other layers;
    // notes/streams.md)
    const bool ahead = chapter.prefetches() && question.options.prefetch > 0;
    const Milliseconds last = question.link->time(w * trained.layer_size(0), ranks);
    const double alone = ahead ? last.count() : messages, compute = question.compute_ms;
    const double at_best = std::max(alone + std::max(messages - alone, compute), copies);
    json["communication_ms"] = messages;  // and without Adam:
    json["step_ms"] = {{"at_most", messages + compute + copies}, {"at_best", at_best}};
  }
  if (question.card > 0) {
    json["fits"] = has(question, question.card - question.headroom, on_device, on_host);
  }
  return json;
}
}  // namespace

std::vector<Layout> layouts_of(const Question& question, int ranks) {
  if (question.parameters == 0) return {layout_of(question.options, 0, ranks)};
  std::int64_t layers = question.options.layers, rest = question.parameters;
  std::vector<std::int64_t> sizes, frozen;
  if (question.model) sizes = question.model->sizes(), layers = 0;
  if (const std::int64_t largest = question.largest_layer; largest > 0) {
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
  if (question.frozen == 0) return {Layout(std::move(sizes), 0, ranks)};
  // Of every layer the same share is frozen.
  double before = 0, frozen_before = 0;
  bool both = true;
  for (std::int64_t& size : sizes) {
    before += size;
    const double up_to = std::round(question.frozen_share() * before);
    frozen.push_back(up_to - std::exchange(frozen_before, up_to));
    size -= frozen.back();
    both = both && size > 0 && frozen.back() > 0;
  }
  throw_if(!both, ExitCode::usage, "{} and {} frozen ones cannot both be in each of {}",
           counted(question.parameters - question.frozen, "trainable parameter"),
           grouped(question.frozen), counted(std::ssize(sizes), "layer"));
  return {Layout(std::move(sizes), 0, ranks), Layout(std::move(frozen), 0, ranks)};
}

Activations activations_of(std::int64_t layers, std::int64_t s, std::int64_t b, std::int64_t h,
                           std::int64_t a, const std::string& recompute) {
  const bool none = recompute == "none", full = recompute == "full";
  throw_if(!none && !full && recompute != "attention", ExitCode::usage,
           "--recompute: {} is none of none, attention, full", recompute);
  const std::int64_t entire = none ? layers : full, each = none ? 0 : full ? 2 : 34;
  const double whole = entire * (34. * h + 5. * a * s), kept = 1. * layers * each * h;
  const double bytes = s * b * (whole + kept);
  throw_if(bytes > 1e15, ExitCode::usage, "{:.0g} bytes of activations fit nowhere", bytes);
  std::vector<std::string> terms;
  if (each > 0) terms.push_back(fmt::format("{} x {} x {} x {} x {}", layers, s, b, each, h));
  if (entire > 0) {
    terms.push_back(fmt::format("{} x {} x {} x (34 x {} + 5 x {} x {})", entire, s, b, h, a, s));
  }
  return {std::llround(bytes), fmt::format("{}", fmt::join(terms, " + "))};
}

std::vector<std::int64_t> Decoder::sizes() const {
  const std::int64_t words = vocabulary * hidden, numbers = 2 * (queries + keys) + 3 * intermediate;
  std::vector<std::int64_t> all(blocks + 2, hidden * (numbers + 2) + small);  // 2: norms
  all.front() = words, all.back() = hidden + (tied ? 0 : words);
  return all;
}

Activations activations_of(const Decoder& model, std::int64_t s, std::int64_t b,
                           const std::string& recompute) {
  const std::int64_t inputs = recompute == "full" ? model.blocks - 1 : 0, h = model.hidden;
  const std::int64_t entire = model.blocks - inputs, kept = model.kept(), ends = model.of_logits();
  const std::int64_t pairs = recompute == "attention" ? 0 : model.of_pair() * s;
  const std::int64_t beside = model.beside() + pairs;
  const double bytes = 1. * s * b * (inputs * 2 * h + entire * (kept + pairs) + beside + ends);
  throw_if(bytes > 1e15, ExitCode::usage, "{:.0g} bytes of activations fit nowhere", bytes);
  return {std::llround(bytes),
          fmt::format("{} x ({} x {} + {} x ({} + {}) + {} + {})", s * b, inputs, 2 * h, entire,
                      kept, pairs, beside, ends),
          activations_of(model.blocks, s, b, h, model.heads, recompute).bytes};
}

Plan plan(const Question& question, const Card& chapter, int ranks) {
  const auto& [options, device] = std::tie(question.options, question.device);
  Plan all;
  for (const Layout& layout : layouts_of(question, ranks)) {
    const bool trained = all.parameters == 0;
    const Card card = trained ? chapter : frozen(chapter);
    const Costs costs = trained ? question.costs(chapter) : Costs{};
    Prediction part = question.parameters > 0 ? predict_state(card, options, layout, costs)
                                              : predict(card, options, device, layout);
    auto& here = part.bytes[Place::device];
    if (!trained) here[Kind::communication] = {};  // no sums
    if (question.convention.gathering) {
      for (Bytes& kind : here) kind.peak = kind.resident;
      here[Kind::parameters].peak +=
          card.prefetches() * borrowed_by_gathering * layout.largest_layer();
    }
    for (const Place place : every<Place>) {
      for (const Kind kind : every<Kind>) {
        all.bytes[place][kind].resident += part.bytes[place][kind].resident;
        all.bytes[place][kind].peak += part.bytes[place][kind].peak;
      }
    }
    const Traffic traffic = part.traffic({});
    for (const Phase phase : step_phases) all.step.sent[phase] += traffic.sent[phase];
    for (const Direction way : every<Direction>) all.step.copied[way] += traffic.copied[way];
    all.step.padding += traffic.padding;
    all.step.scalars = traffic.scalars;
    all.parameters += part.parameters;
    all.padded += part.padded;
    if (trained) all.factors = part.factors;
  }
  all.bytes[Place::device][Kind::activations].peak += question.activations.bytes;
  return all;
}

Json fit(const Question& question, const Card& chapter) {
  const auto fewest = [&](std::int64_t card, auto bytes) -> Json {
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      if (has(question, card, bytes(ranks, Place::device), bytes(ranks, Place::host))) return ranks;
    }
    return {};
  };
  const auto state = [&](std::int64_t all, double ranks, Place place = Place::device) {
    return state_of(question, chapter, all, question.frozen_share(), ranks, place);
  };
  const auto bytes = [&](int ranks, Place place) {
    return ranks > 0 ? plan(question, chapter, ranks).sum(&Bytes::peak, place) : 0;
  };
  const Plan many = plan(question, chapter, most_ranks);
  const Json by_all = fewest(question.card - question.headroom, bytes);
  const int ranks = by_all.is_null() ? 0 : by_all.get<int>();
  const double shared = state(many.padded, most_ranks) - state(many.padded, no_end);
  return {{"fewest_ranks", by_all},
          {"fewest_ranks_by_formula", fewest(question.card - question.activations.bytes,
                                             std::bind_front(state, many.parameters))},
          {"reserved_then", bytes(ranks, Place::device)},
          {"on_host_then", bytes(ranks, Place::host)},
          {"reserved_on_one_less", bytes(ranks - 1, Place::device)},
          {"on_every_rank", many.sum(&Bytes::peak) - static_cast<std::int64_t>(shared)}};
}

std::string state_formula(const Question& question, const Card& chapter, Place place,
                          bool of_frozen) {
  const auto on = [&](double ranks) {
    return state_of(question, chapter, 1, of_frozen, ranks, place);
  };
  const double whole = on(no_end);
  return sum_of(whole, on(1) - whole, "/N");
}

std::string sent_formula(const Card& chapter, std::span<const Phase> phases) {
  Frequency all;
  for (const Phase phase : phases) {
    const Frequency& sent = chapter.sent_in(phase);
    all = {all.a_step + sent.a_step, all.a_micro_batch + sent.a_micro_batch};
  }
  return sum_of(all.a_step, all.a_micro_batch, "A");
}

Json cards_json(Cards chapters) {
  Json all;
  for (const Card* card : chapters) {
    const auto& [p, g, k] = card->held;
    const auto& [parameters, and_prefetched, gradients] = card->borrowed;
    Json& told = all.emplace_back();
    told = {{"name", card->name}, {"ranks", card->ranks}};
    told["mixed_precision"] = card->mixed_precision;
    told["held"] = {
        {"parameters", name_of(p)}, {"gradients", name_of(g)}, {"optimizer", name_of(k)}};
    told["bytes"] = {{"device", formula(*card)}, {"host", formula(*card, Place::host)}};
    for (const Phase phase : step_phases) {
      told["sent"][name_of(phase)] = sent_formula(*card, {&phase, 1});
    }
    told["borrowed"] = {
        {"parameters", parameters}, {"and_prefetched", and_prefetched}, {"gradients", gradients}};
    told["copied"] = {{"to_host", card->copied.to_host}, {"to_device", card->copied.to_device}};
  }
  return all;
}

Json make_plan(const Question& question, Cards chapters, int ranks) {
  const bool found = ranks == 0;
  if (found) ranks = most_ranks;
  std::vector<std::pair<const Card*, Json>> columns;  // and what fits the card
  for (const Card* chapter : chapters) {
    if (!chapter->mixed_precision && needs_master(question.options.dtype)) continue;
    const Json fits = question.card > 0 ? fit(question, *chapter) : Json::object();
    if (found) ranks = std::min(ranks, ranks_needed(fits));
    columns.emplace_back(chapter, fits);
  }
  const Layout trained = layouts_of(question, ranks)[0];
  const Plan all = plan(question, *chapters.front(), ranks);
  Json json{{"parameters", all.parameters},
            {"padded_parameters", all.padded},
            {"trainable", trained.parameters()},
            {"padded_trainable", trained.full_size()},
            {"checkpoint", checkpoint_bytes * trained.parameters()},
            {"layers", trained.layers()},
            {"activations", question.activations.bytes},
            {"ranks", ranks},
            {"ranks_found", found},
            {"dtype", name_of(question.options.dtype)},
            {"device", name_of(question.device)},
            {"accumulate", question.options.accumulate},
            {"prefetch", question.options.prefetch},
            {"convention", question.convention.name},
            {"chapters", Json::array()}};
  if (const std::optional<Decoder>& model = question.model) {
    json["config"] = {{"file", model->file},
                      {"layer_sizes", model->sizes()},
                      {"block_bytes", {model->kept(), model->of_pair()}},
                      {"beside_bytes", {model->beside(), model->of_pair()}},
                      {"logits_bytes", model->of_logits()},
                      {"activations_by_korthikanti", question.activations.by_korthikanti}};
  }
  for (const auto& [chapter, fits] : columns) {
    Json column = answers(question, *chapter, ranks);
    column.update(fits);
    json["chapters"].push_back(column);
  }
  if (question.card > 0) {
    json["card"] = question.card;
    json["headroom"] = question.headroom;
    json["to_fill"] = question.card - question.headroom;
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
