// SPDX-License-Identifier: MIT
// A plan in columns, for a reader, and in JSON, for a script.
#include <nlohmann/json.hpp>

#include "notes/plan/plan.hpp"

namespace zero {
namespace {
constexpr int page = 80, label = 24;

/// Breaks a text into lines of at most `page` columns, between words.
void print_wrapped(const std::string& text) {
  std::size_t at = 0;
  while (text.size() - at > page) {
    const std::size_t end = text.rfind(' ', at + page);
    fmt::print("{}\n", text.substr(at, end - at));
    at = end + 1;
  }
  fmt::print("{}\n", text.substr(at));
}

/// Columns of equal figures are printed once.
bool alike(const Column& a, const Column& b) {
  const auto bytes = [](const Prediction::Bytes& kind) {
    return std::pair(kind.resident, kind.peak);
  };
  const bool same_bytes =
      std::ranges::equal(a.prediction.bytes, b.prediction.bytes, {}, bytes, bytes);
  return same_bytes && a.prediction.factors == b.prediction.factors && a.state == b.state &&
         a.sent == b.sent;
}

/// GB while they fit into a column, so that what is sharded stays readable beside what is not.
Unit table_unit(std::int64_t largest) {
  return unit_for(largest < 1e16 ? std::min<std::int64_t>(largest, 1e12) : largest, 1e4);
}

struct Table {
  explicit Table(const Plan& plan) : plan(plan) {
    for (const Column& column : plan.columns) {
      const std::string number = std::string(column.chapter->name).substr(0, 2);
      if (!columns.empty() && alike(*columns.back(), column)) {
        numbers.back() += "/" + number;
      } else {
        columns.push_back(&column);
        numbers.push_back(number);
      }
    }
    std::int64_t largest = 0;
    for (const Column* column : columns) {
      largest = std::max({largest, column->reserved(), column->reserved(Place::host)});
    }
    unit = table_unit(largest);
    width = std::min<int>(14, (page - label) / static_cast<int>(columns.size()));
  }

  void line(const std::string& name, const std::vector<std::string>& cells) const {
    // A long first cell may begin to the left of its column.
    fmt::print("{}{:>{}}", name, cells[0], label + width - static_cast<int>(name.size()));
    for (std::size_t i = 1; i < cells.size(); ++i) fmt::print("{:>{}}", cells[i], width);
    fmt::print("\n");
  }
  /// cell(column) as text.
  void row(const std::string& name, auto cell) const {
    std::vector<std::string> cells;
    for (const Column* column : columns) cells.push_back(cell(*column));
    line(name, cells);
  }
  void bytes_row(const std::string& name, auto bytes) const {
    row(name, [&](const Column& column) { return in_unit(bytes(column), unit); });
  }

  const Plan& plan;
  std::vector<const Column*> columns;
  std::vector<std::string> numbers;  // of the chapters of each column
  Unit unit{};  // of all bytes of one rank
  int width;
};

bool offloads(const Plan& plan) {
  return std::ranges::any_of(plan.columns, [](const Column& c) { return c.chapter->offloads(); });
}

bool in_use(const Plan& plan, Kind kind, auto figure) {
  return std::ranges::any_of(plan.columns, [&](const Column& column) {
    return figure(column.prediction.bytes[static_cast<int>(kind)]) > 0;
  });
}

void print_head(const Plan& plan, const Table& table) {
  const Question& question = plan.question;
  const Prediction& any = plan.columns[0].prediction;
  const Layout layout = layout_of(question, plan.ranks);
  fmt::print("{} parameters in {}, {}, on {}\n", grouped(any.parameters),
             counted(layout.layers(), "layer"), name_of(question.options.dtype),
             counted(plan.ranks, "rank"));
  if (any.padded > any.parameters) {
    fmt::print("with padding {}, as each layer has equal shards\n", grouped(any.padded));
  }
  if (plan.ranks_found) {
    const bool fits = std::ranges::any_of(
        plan.columns, [&](const Column& column) { return column.fits(question); });
    fmt::print("{}\n", fits ? "these are the fewest ranks on which a chapter fits"
                            : "no chapter fits on these or fewer, and more are not tried");
  }
  const Costs& costs = question.convention.costs;
  fmt::print("bytes a parameter: itself {}, its gradient {}, optimizer state {} ({})\n",
             any.element, costs.grads, costs.optimizer, question.convention.name);
  if (const auto& gathering = question.convention.gathering) {
    fmt::print("where layers are gathered: gradient {}, optimizer state {}\n",
               gathering->costs.grads, gathering->costs.optimizer);
  }
  if (question.convention.master_apart > 0 && offloads(plan)) {
    fmt::print("where it is offloaded: optimizer state {}, with master weights of its own\n",
               costs.optimizer + question.convention.master_apart);
  }
  if (question.parameters > 0) {
    fmt::print("activations, data and workspace are not in it: they depend on the model\n");
  }
  fmt::print("{0} are decimal: 1 {0} is {1} bytes\n\n", table.unit.name,
             grouped(static_cast<std::int64_t>(table.unit.size)));
  table.line("", table.numbers);
  table.row("", [](const Column& column) -> std::string {
    const std::string name = column.chapter->name;
    return column.state.find('N') == column.state.npos ? "data parallel" : name.substr(3);
  });
}

void print_bytes(const Plan& plan, const Table& table) {
  using Bytes = Prediction::Bytes;
  const auto borrowed = [](const Bytes& kind) { return kind.peak - kind.resident; };
  const auto held = [](const Bytes& kind) { return kind.resident; };
  const auto rows = [&](auto figure) {
    for (int k = 0; k < kind_count; ++k) {
      if (!in_use(plan, static_cast<Kind>(k), figure)) continue;
      table.bytes_row(fmt::format("  {}", name_of(static_cast<Kind>(k))),
                      [&](const Column& column) { return figure(column.prediction.bytes[k]); });
    }
  };
  fmt::print("held by a rank throughout, {}\n", table.unit.name);
  rows(held);
  table.bytes_row("resident",
                  [](const Column& column) { return column.prediction.sum(&Bytes::resident); });
  table.row("  state, bytes a param.", [](const Column& column) { return column.state; });
  table.row("  of it saved", [&](const Column& column) {
    return fmt::format("{:.1f} %", 100 * column.saved(plan.question));
  });
  fmt::print("borrowed within a step, {}\n", table.unit.name);
  rows(borrowed);
  const auto reserved = [&](const char* name, Place place) {
    table.bytes_row(name, [=](const Column& column) { return column.reserved(place); });
    std::int64_t most = 0;
    for (const Column* column : table.columns) {
      most = std::max(most, plan.ranks * column->reserved(place));
    }
    const Unit unit = unit_for(most, 1e4);
    table.row(fmt::format("  by {}, {}", counted(plan.ranks, "rank"), unit.name),
              [&](const Column& c) { return in_unit(plan.ranks * c.reserved(place), unit); });
  };
  reserved("reserved", Place::device);
  if (!offloads(plan)) return;
  fmt::print("on its host throughout, {}\n", table.unit.name);
  for (int k = 0; k < kind_count; ++k) {
    const auto on_host = [=](const Column& c) { return c.prediction.on_host[k].peak; };
    if (!std::ranges::any_of(plan.columns, [&](const Column& c) { return on_host(c) > 0; }))
      continue;
    table.bytes_row(fmt::format("  {}", name_of(static_cast<Kind>(k))), on_host);
  }
  reserved("on the host", Place::host);
  table.row("  bytes a param.", [](const Column& column) { return column.on_host; });
}

void print_traffic(const Plan& plan, const Table& table) {
  std::int64_t largest = 0;
  for (const Column& column : plan.columns) largest = std::max(largest, column.elements());
  // As bytes are, but by name: 10^3, 10^6, ...
  const double size = table_unit(largest).size;
  fmt::print("\nsent by a rank in a step, 10^{:g} elements of {} bytes\n", std::log10(size),
             plan.columns[0].prediction.element);
  const auto elements = [&](std::int64_t count) {
    return fmt::format("{:.2f}", static_cast<double>(count) / size);
  };
  for (const Phase phase : step_phases) {
    table.row(fmt::format("  {}", name_of(phase)),
              [&](const Column& column) { return elements(column.prediction.sent(phase, {})); });
  }
  table.row("elements", [&](const Column& column) { return elements(column.elements()); });
  table.row("  a param. x (N - 1)/N", [](const Column& column) { return column.sent; });
  const Unit unit = unit_for(plan.columns[0].prediction.element * largest, 1e4);
  table.row(fmt::format("  bytes, {}", unit.name), [&](const Column& column) {
    return in_unit(column.prediction.element * column.elements(), unit);
  });
  const Layout layout = layout_of(plan.question, plan.ranks);
  table.row("  collectives", [&](const Column& column) {
    std::int64_t count = 0;
    for (const Phase phase : step_phases) count += column.prediction.collectives(phase, layout);
    return fmt::to_string(count);
  });
  if (!offloads(plan)) return;
  fmt::print("copied by it over the bus in a step, {}\n", table.unit.name);
  for (const Direction direction : {Direction::down, Direction::up}) {
    table.bytes_row(direction == Direction::down ? "  down, gradients" : "  up, parameters",
                    [=](const Column& c) { return c.prediction.copied(direction, {}); });
  }
}

void print_time(const Plan& plan, const Table& table) {
  const Question& question = plan.question;
  const auto ms = [&](const char* name, auto time) {
    table.row(name, [&](const Column& column) { return fmt::format("{:.2f}", time(column)); });
  };
  if (question.bus > 0) {
    fmt::print("\nover a bus of {:g} GB/s; Adam on the host takes time of its own\n", question.bus);
    ms("copies, ms", [&](const Column& column) { return column.copies_ms(question); });
  }
  if (!question.link) return;
  fmt::print("\non a link of {:g} Gbit/s and {:g} microseconds\n", question.link->gbit_per_s,
             question.link->latency_us);
  ms("communication, ms", [&](const Column& c) { return c.communication_ms(question); });
  if (question.compute_ms == 0) return;
  ms("step at most, ms", [&](const Column& column) { return column.most_step_ms(question); });
  ms("  at best, ms", [&](const Column& column) { return column.least_step_ms(question); });
}

void print_fit(const Plan& plan, const Table& table) {
  const std::int64_t card = plan.question.card;
  if (card == 0) return;
  fmt::print("\non a card of {}\n", room(plan.question));
  table.row(fmt::format("fits on {}", counted(plan.ranks, "rank")),
            [&](const Column& column) { return column.fits(plan.question) ? "yes" : "no"; });
  table.row("fewest ranks", [&](const Column& column) {
    const Fit& fit = *column.fit;
    return fit.reserved               ? grouped(*fit.reserved)
           : fit.on_every_rank > card ? "none"
                                      : fmt::format("> {}", most_ranks);
  });
  const auto reserved = [&](const char* name, std::int64_t Fit::*bytes) {
    table.row(fmt::format("{}, {}", name, table.unit.name), [&](const Column& c) -> std::string {
      return (*c.fit).*bytes > 0 ? in_unit((*c.fit).*bytes, table.unit) : "-";
    });
  };
  reserved("  reserved then", &Fit::bytes);
  if (offloads(plan)) reserved("  on the host then", &Fit::on_host);
  reserved("  on one rank less", &Fit::on_one_less);
  reserved("  as N grows", &Fit::on_every_rank);
  table.row("  by formula alone", [&](const Column& column) {
    return column.fit->formula ? grouped(*column.fit->formula) : "-";
  });
  fmt::print("\n");
  print_wrapped(advice(plan));
}
}  // namespace

void print_plan(const Plan& plan) {
  const Table table(plan);
  print_head(plan, table);
  print_bytes(plan, table);
  print_traffic(plan, table);
  print_time(plan, table);
  print_fit(plan, table);
}

std::string json_of(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  const Question& question = plan.question;
  const Layout layout = layout_of(question, plan.ranks);
  const auto or_null = [](auto value) { return value ? Json(*value) : Json(); };
  Json json{{"parameters", layout.parameters()},
            {"padded_parameters", layout.full_size()},
            {"layers", layout.layers()},
            {"largest_layer", layout.largest_layer()},
            {"ranks", plan.ranks},
            {"ranks_found", plan.ranks_found},
            {"dtype", name_of(question.options.dtype)},
            {"device", name_of(question.device)},
            {"accumulate", question.options.accumulate},
            {"prefetch", question.options.prefetch},
            {"convention", question.convention.name},
            {"chapters", Json::array()}};
  if (question.card > 0) {
    json["card"] = question.card;
    json["host"] = question.host > 0 ? Json(question.host) : Json();
    json["advice"] = advice(plan);
  }
  if (question.link) {
    json["link"] = {{"gbit_per_s", question.link->gbit_per_s},
                    {"latency_us", question.link->latency_us}};
    json["compute_ms"] = question.compute_ms;
  }
  if (question.bus > 0) json["bus_gb_per_s"] = question.bus;
  for (const Column& column : plan.columns) {
    const Prediction& predicted = column.prediction;
    const Costs costs = question.convention.costs_in(*column.chapter);
    Json chapter{{"name", column.chapter->name},
                 {"bytes_a_parameter", {predicted.element, costs.grads, costs.optimizer}},
                 {"state_formula", column.state},
                 {"state_saved", column.saved(question)},
                 {"resident", predicted.sum(&Prediction::Bytes::resident)},
                 {"reserved", column.reserved()},
                 {"reserved_by_all_ranks", plan.ranks * column.reserved()},
                 {"host_formula", column.on_host},
                 {"on_host", column.reserved(Place::host)},
                 {"on_host_by_all_ranks", plan.ranks * column.reserved(Place::host)},
                 {"sent_formula", column.sent},
                 {"sent_elements", column.elements()},
                 {"sent_bytes", predicted.element * column.elements()},
                 {"padding_sent_by_all_ranks", predicted.padding_sent({})},
                 {"scalars_sent", predicted.scalars_sent({})}};
    for (int k = 0; k < kind_count; ++k) {
      const auto& [resident, peak] = predicted.bytes[k];
      chapter["kinds"][name_of(static_cast<Kind>(k))] = {{"resident", resident}, {"peak", peak}};
      if (predicted.on_host[k].peak == 0) continue;
      chapter["host_kinds"][name_of(static_cast<Kind>(k))] = predicted.on_host[k].peak;
    }
    for (const Direction direction : {Direction::down, Direction::up}) {
      chapter["copied"][name_of(direction)] = predicted.copied(direction, {});
    }
    if (question.bus > 0) chapter["copies_ms"] = column.copies_ms(question);
    for (const Phase phase : step_phases) {
      Json& row = chapter["phases"][name_of(phase)];
      row = {{"formula", sent_formula(*column.chapter, phase)},
             {"elements", predicted.sent(phase, {})},
             {"collectives", predicted.collectives(phase, layout)}};
      if (question.link) row["ms"] = 1e3 * predicted.time(phase, layout, *question.link).count();
    }
    if (question.link) {
      chapter["communication_ms"] = column.communication_ms(question);
      chapter["step_ms"] = {{"at_most", column.most_step_ms(question)},
                            {"at_best", column.least_step_ms(question)}};
    }
    if (column.fit) {
      chapter["fits"] = column.fits(question);
      chapter["fewest_ranks"] = or_null(column.fit->reserved);
      chapter["fewest_ranks_by_formula"] = or_null(column.fit->formula);
      chapter["reserved_then"] = column.fit->bytes;
      chapter["on_host_then"] = column.fit->on_host;
      chapter["reserved_on_one_less"] = column.fit->on_one_less;
      chapter["on_every_rank"] = column.fit->on_every_rank;
    }
    json["chapters"].push_back(chapter);
  }
  return json.dump(2);
}
}  // namespace zero
