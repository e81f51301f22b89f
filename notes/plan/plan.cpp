// SPDX-License-Identifier: MIT
#include "notes/plan/plan.hpp"

#include <cmath>
#include <limits>

#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
/// "a + b/N" and the like: a constant and a multiple of something, without what is 0.
std::string sum_of(double constant, double multiple, const char* of) {
  const std::string first = constant != 0 ? fmt::format("{:g}", constant) : "";
  if (multiple == 0) return first.empty() ? "0" : first;
  const bool divides = *of == '/';
  const std::string second = (multiple == 1 && !divides ? "" : fmt::format("{:g}", multiple)) + of;
  return first.empty() ? second : first + " + " + second;
}

std::string linear_in_micro_batches(const Chapter& chapter, auto figure) {
  const double one = figure(chapter.elements_sent(1)), two = figure(chapter.elements_sent(2));
  return sum_of(2 * one - two, two - one, "A");
}

/// Bytes on one of so many ranks of the state of `parameters` parameters.
double state_of(const Question& question, const Chapter& chapter, double parameters, double ranks,
                Place place = Place::device) {
  if (place == Place::host && !chapter.offloads()) return 0;
  const auto bytes = place == Place::host ? chapter.offload.bytes : chapter.state_bytes;
  const Costs costs = question.convention.costs_in(chapter);
  return bytes(parameters * static_cast<double>(bytes_of(question.options.dtype)),
               parameters * static_cast<double>(costs.grads),
               parameters * static_cast<double>(costs.optimizer), ranks);
}

/// Whether a rank has so many bytes.
bool has(const Question& question, auto on_device, auto on_host) {
  return on_device <= static_cast<decltype(on_device)>(question.card) &&
         (question.host == 0 || on_host <= static_cast<decltype(on_host)>(question.host));
}

/// What a rank takes.
std::string taken(std::int64_t on_device, std::int64_t on_host) {
  const std::string host = on_host > 0 ? " and " + sized(on_host) + " on its host" : "";
  return fmt::format("{} a rank{}", sized(on_device), host);
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
             "{} parameters are not {} of which the largest has {}: the others would have {}",
             grouped(rest), counted(layers, "layer"), grouped(largest), grouped(others));
    sizes.push_back(largest);
    rest -= largest, --layers;
  }
  throw_if(rest < layers, ExitCode::usage, "{} are fewer than {}: say fewer --layers",
           counted(rest, "parameter"), counted(layers, "layer"));
  for (std::int64_t l = 0; l < layers; ++l) sizes.push_back(rest / layers + (l < rest % layers));
  return Layout(std::move(sizes), 0, ranks);
}

Prediction plan(const Question& question, const Chapter& chapter, int ranks) {
  const Layout layout = layout_of(question, ranks);
  if (question.parameters == 0) {
    return predict(chapter, question.options, question.device, layout);
  }
  Prediction plan = predict_state(chapter, question.options, question.convention.costs_in(chapter),
                                  question.device, layout);
  if (const auto& gathering = question.convention.gathering) {
    for (Prediction::Bytes& kind : plan.bytes) kind.peak = kind.resident;
    const std::int64_t borrowed = gathering->borrowed * layout.largest_layer();
    if (chapter.prefetch()) plan.bytes[static_cast<int>(Kind::parameters)].peak += borrowed;
  }
  return plan;
}

Fit fit(const Question& question, const Chapter& chapter) {
  Fit fit;
  const auto parameters = static_cast<double>(layout_of(question, 1).parameters());
  for (int ranks = 1; ranks <= most_ranks && !fit.formula; ++ranks) {
    const auto state = [&](Place place) {
      return state_of(question, chapter, parameters, ranks, place);
    };
    if (has(question, state(Place::device), state(Place::host))) fit.formula = ranks;
  }
  std::int64_t before = 0;
  for (int ranks = 1; ranks <= most_ranks && !fit.reserved; ++ranks) {
    const Prediction on = plan(question, chapter, ranks);
    const std::int64_t bytes = on.sum(&Prediction::Bytes::peak);
    const std::int64_t on_host = on.sum(&Prediction::Bytes::peak, Place::host);
    if (has(question, bytes, on_host)) {
      fit.reserved = ranks;
      fit.bytes = bytes;
      fit.on_host = on_host;
      fit.on_one_less = before;
    }
    before = bytes;
  }
  const Prediction many = plan(question, chapter, most_ranks);
  const auto all = static_cast<double>(many.padded);
  const double shared = state_of(question, chapter, all, most_ranks) -
                        state_of(question, chapter, all, std::numeric_limits<double>::infinity());
  fit.on_every_rank = many.sum(&Prediction::Bytes::peak) - static_cast<std::int64_t>(shared);
  return fit;
}

std::string state_formula(const Question& question, const Chapter& chapter, Place place) {
  const auto value = [&](double ranks) { return state_of(question, chapter, 1, ranks, place); };
  const double shared = 2 * (value(1) - value(2)), whole = value(1) - shared;
  expect(value(4) == whole + shared / 4, "bytes a parameter are of the form a + b/N");
  return sum_of(whole, shared, "/N");
}

std::string sent_formula(const Chapter& chapter, Phase phase) {
  return linear_in_micro_batches(
      chapter, [&](const Traffic& traffic) { return by_phase(traffic)[static_cast<int>(phase)]; });
}

std::string sent_formula(const Chapter& chapter) {
  return linear_in_micro_batches(chapter, [](const Traffic& traffic) {
    return traffic.forward + traffic.backward + traffic.update;
  });
}

bool Column::fits(const Question& question) const {
  return has(question, reserved(), reserved(Place::host));
}

double Column::saved(const Question& question) const {
  // A master of its own is a price of offloading, no state that it saves.
  Chapter all_on_device = *chapter;
  all_on_device.offload = {};
  const Costs costs = question.convention.costs_in(all_on_device);
  const auto all =
      static_cast<double>(bytes_of(question.options.dtype) + costs.grads + costs.optimizer);
  return 1 - state_of(question, *chapter, 1, static_cast<double>(prediction.ranks)) / all;
}

std::int64_t Column::elements() const {
  std::int64_t elements = 0;
  for (const Phase phase : step_phases) elements += prediction.sent(phase, {});
  return elements;
}

double Column::communication_ms(const Question& question) const {
  const Layout layout = layout_of(question, static_cast<int>(prediction.ranks));
  std::chrono::duration<double, std::milli> all{};
  for (const Phase phase : step_phases) all += prediction.time(phase, layout, *question.link);
  return all.count();
}

double Column::copies_ms(const Question& question) const {
  if (question.bus == 0) return 0;
  const std::int64_t bytes =
      prediction.copied(Direction::down, {}) + prediction.copied(Direction::up, {});
  return static_cast<double>(bytes) / question.bus / 1e6;
}

double Column::most_step_ms(const Question& question) const {
  return communication_ms(question) + question.compute_ms + copies_ms(question);
}

double Column::least_step_ms(const Question& question) const {
  const double communication = communication_ms(question), copies = copies_ms(question);
  if (!chapter->prefetch() || question.options.prefetch == 0) {
    return std::max(communication + question.compute_ms, copies);
  }
  // The last reduce-scatter, layer 0's, has nothing after it. (The first gather may pass beside the
  // update of the other layers; notes/streams.md)
  const Layout layout = layout_of(question, static_cast<int>(prediction.ranks));
  const std::chrono::duration<double, std::milli> last =
      question.link->time(prediction.element * layout.layer_size(0), prediction.ranks);
  const double end = last.count();
  return std::max(end + std::max(communication - end, question.compute_ms), copies);
}

Plan make_plan(const Question& question, std::span<const Chapter* const> chapters, int ranks) {
  Plan made{.question = question, .ranks = ranks, .ranks_found = ranks == 0};
  for (const Chapter* chapter : chapters) {
    if (!chapter->mixed_precision && is_mixed(question.options.dtype)) continue;
    Column& column = made.columns.emplace_back(Column{.chapter = chapter});
    if (question.card > 0) column.fit = fit(question, *chapter);
    column.state = state_formula(question, *chapter);
    column.on_host = state_formula(question, *chapter, Place::host);
    column.sent = sent_formula(*chapter);
  }
  if (ranks == 0) {
    made.ranks = most_ranks;
    for (const Column& column : made.columns) {
      made.ranks = std::min(made.ranks, column.fit->reserved.value_or(most_ranks));
    }
  }
  for (Column& column : made.columns)
    column.prediction = plan(question, *column.chapter, made.ranks);
  return made;
}

std::string advice(const Plan& plan) {
  const std::int64_t card = plan.question.card;
  const Column& first = plan.columns.front();
  const Column* fitting = nullptr;
  const Column* before = nullptr;  // the chapter before it, which does not fit
  const Column* next = nullptr;  // that fits on the fewest ranks, where none fits on these
  const Column* least = &first;  // that leaves least on every rank
  for (const Column& column : plan.columns) {
    if (!fitting && column.fits(plan.question)) fitting = &column;
    if (!fitting) before = &column;
    const auto needs = [](const Column* of) { return of->fit->reserved.value_or(most_ranks + 1); };
    if (column.fit->reserved && (!next || needs(&column) < needs(next))) next = &column;
    if (column.fit->on_every_rank < least->fit->on_every_rank) least = &column;
  }
  std::string text;
  const std::string ranks = counted(plan.ranks, "rank");
  if (fitting) {
    text =
        fmt::format("Take {} on {} of {}: {}", fitting->chapter->name, ranks, room(plan.question),
                    taken(fitting->reserved(), fitting->reserved(Place::host)));
    if (before) {
      text += fmt::format("; {} would need {}", before->chapter->name, sized(before->reserved()));
      const auto& more = before->fit->reserved;
      if (fitting->chapter->offloads() && more)
        text += fmt::format(", or {}", counted(*more, "rank"));
    } else if (plan.columns.size() > 1) {
      text += ", and no chapter sends less";
    }
    text += ".";
  } else if (next) {
    text =
        fmt::format("None fits on {} of {}: take {} on {} or more, {}.", ranks, room(plan.question),
                    next->chapter->name, counted(*next->fit->reserved, "rank"),
                    taken(next->fit->bytes, next->fit->on_host));
  } else if (least->fit->on_every_rank > card) {
    text = fmt::format(
        "None fits in {}, on however many ranks: even {} keeps {} on every rank; take larger cards "
        "or {}.",
        room(plan.question), least->chapter->name, sized(least->fit->on_every_rank),
        least->chapter->prefetch() ? "smaller layers" : "a later chapter");
  } else {
    text = fmt::format("None fits in {} on up to {}: take larger cards or smaller layers.",
                       room(plan.question), counted(most_ranks, "rank"));
  }
  std::string dearer;
  for (const Column& column : plan.columns) {
    if (plan.question.options.accumulate == 1 || column.elements() <= first.elements()) continue;
    const auto times =
        static_cast<double>(column.elements()) / static_cast<double>(first.elements());
    dearer += dearer.empty() ? fmt::format("{} sends", column.chapter->name)
                             : fmt::format(", {}", column.chapter->name);
    dearer += fmt::format(" {:.4g} times", times);
  }
  if (!dearer.empty()) {
    text += fmt::format(" With {} micro-batches a step {} what {} does.",
                        plan.question.options.accumulate, dearer, first.chapter->name);
  }
  return text;
}

std::string room(const Question& question) {
  const std::string host = question.host > 0 ? " and " + sized(question.host) + " of host" : "";
  return sized(question.card) + host;
}

Unit unit_for(std::int64_t bytes, double below) {
  const Unit units[] = {{1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}};
  const Unit* unit = units;
  while (static_cast<double>(bytes) >= below * unit->size && unit != std::end(units) - 1) ++unit;
  return *unit;
}

std::string in_unit(std::int64_t bytes, const Unit& unit) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / unit.size);
}

std::string sized(std::int64_t bytes) {
  const Unit unit = unit_for(bytes, 1e3);
  return fmt::format("{} {}", in_unit(bytes, unit), unit.name);
}
}  // namespace zero
