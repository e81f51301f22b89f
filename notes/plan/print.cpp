// SPDX-License-Identifier: MIT
// A plan in columns and in words.
#include <algorithm>
#include <cmath>

#include "notes/plan/plan.hpp"

namespace zero {
namespace {
constexpr int page = 80, label = 24;

struct Unit {
  double size;
  const char* name;
};

/// The smallest in which so many are fewer than `below`, of kB to TB.
Unit unit_for(std::int64_t bytes, double below) {
  const Unit units[] = {{1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}};
  const Unit* unit = units;
  while (static_cast<double>(bytes) >= below * unit->size && unit != std::end(units) - 1) ++unit;
  return *unit;
}

/// GB while they fit into a column, so that what is sharded stays readable beside what is not.
Unit table_unit(std::int64_t largest) {
  return unit_for(largest < 1e16 ? std::min<std::int64_t>(largest, 1e12) : largest, 1e4);
}

/// "12.34 GB".
std::string sized(std::int64_t bytes) {
  const Unit unit = unit_for(bytes, 1e3);
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.size, unit.name);
}

std::string taken(std::int64_t on_device, std::int64_t on_host) {
  const std::string host = on_host > 0 ? " and " + sized(on_host) + " on its host" : "";
  return fmt::format("{} a rank{}", sized(on_device), host);
}

/// What a rank has: "80.00 GB with 4.00 GB of headroom and 256.00 GB of host".
std::string room(const Json& plan) {
  const Json& host = plan["host"];
  const Json& headroom = plan["headroom"];
  return sized(plan["card"]) + (headroom > 0 ? " with " + sized(headroom) + " of headroom" : "") +
         (host.is_null() ? "" : " and " + sized(host) + " of host");
}

bool fits(const Json& column) { return column["fits"]; }
bool offloads(const Json& column) { return column["copied"]["up"] > 0; }

void print_wrapped(const std::string& text) {
  std::size_t at = 0;
  while (text.size() - at > page) {
    const std::size_t end = text.rfind(' ', at + page);
    fmt::print("{}\n", text.substr(at, end - at));
    at = end + 1;
  }
  fmt::print("{}\n", text.substr(at));
}

/// A chapter's answers as they are printed: some for others, some in words.
Json printed(const Json& chapter, const Json& plan) {
  Json column = chapter;
  for (const auto& [kind, bytes] : chapter["kinds"].items()) {
    const std::int64_t held = bytes["resident"], peak = bytes["peak"];
    column["held"][kind] = held;
    column["borrowed"][kind] = peak - held;
  }
  column["state_saved"] = fmt::format("{:.2f} %", 100 * chapter["state_saved"].get<double>());
  std::int64_t collectives = 0;
  for (const Json& phase : chapter["phases"]) collectives += phase["collectives"].get<int>();
  column["collectives"] = fmt::to_string(collectives);
  if (!plan.contains("card")) return column;
  const auto in_words = [&](const char* key, const std::string& none) {
    Json& ranks = column[key];
    ranks = ranks.is_null() ? none : grouped(ranks);
  };
  const bool never = column["on_every_rank"] > plan["to_fill"];
  in_words("fewest_ranks", never ? "none" : fmt::format("> {}", most_ranks));
  in_words("fewest_ranks_by_formula", "-");
  for (const char* key : {"reserved_then", "on_host_then", "reserved_on_one_less"}) {
    if (column[key] == 0) column[key] = "-";
  }
  return column;
}

class Table {
 public:
  explicit Table(const Json& plan) {
    Json last;
    for (Json chapter : plan["chapters"]) {
      const std::string name = chapter["name"], state = chapter["state_formula"];
      chapter.erase("name");
      if (chapter == last) {  // equal figures are printed once
        std::string& numbers = columns_.back()["numbers"].get_ref<std::string&>();
        numbers += "/" + name.substr(0, 2);
        continue;
      }
      last = chapter;
      Json& column = columns_.emplace_back(printed(chapter, plan));
      column["numbers"] = name.substr(0, 2);
      column["name"] = state.find('N') == state.npos ? "data parallel" : name.substr(3);
    }
    unit = table_unit(std::max(largest("/reserved"), largest("/on_host")));
    width_ = std::min<int>(14, (page - label) / static_cast<int>(columns_.size()));
  }

  void section(const char* heading) const { fmt::print("{}, {}\n", heading, unit.name); }
  /// What a path says: words as they are, numbers in so large a unit.
  void row(const std::string& name, const std::string& path, double size) const {
    // A long first cell may begin to the left of its column.
    int width = label + width_ - static_cast<int>(name.size());
    fmt::print("{}", name);
    for (const Json& column : columns_) {
      const Json value = column.value(Json::json_pointer(path), Json(0));
      const std::string cell = value.is_string()    ? value.get<std::string>()
                               : value.is_boolean() ? (value ? "yes" : "no")
                                                    : fmt::format("{:.2f}", double(value) / size);
      fmt::print(" {:>{}}", cell, std::exchange(width, width_) - 1);
    }
    fmt::print("\n");
  }
  void row(const std::string& name, const std::string& path) const { row(name, path, unit.size); }
  /// Bytes that have a unit of their own.
  void large(const std::string& name, const std::string& path) const {
    const Unit own = unit_for(largest(path), 1e4);
    row(fmt::format("{}, {}", name, own.name), path, own.size);
  }
  /// Of each kind of which there is any.
  void kinds(const std::string& path) const {
    for (const std::string kind : names_of<Kind>) {
      if (largest(path + kind) > 0) row("  " + kind, path + kind);
    }
  }
  std::int64_t largest(const std::string& path) const {
    std::int64_t largest = 0;
    for (const Json& column : columns_) {
      largest = std::max(largest, column.value(Json::json_pointer(path), std::int64_t{0}));
    }
    return largest;
  }

  Unit unit{};  // of all bytes of one rank

 private:
  std::vector<Json> columns_;  // chapters that have different figures
  int width_;
};

void print_head(const Question& question, const Json& plan, const Unit& unit) {
  const std::int64_t parameters = plan["parameters"], padded = plan["padded_parameters"];
  const Convention& convention = question.convention;
  const Dtype dtype = question.options.dtype;
  const Costs costs = question.costs({.name = ""});
  const auto any = [&](auto of) { return std::ranges::any_of(plan["chapters"], of); };
  fmt::print("{} in {}, {}, on {}\n", counted(parameters, "parameter"),
             counted(plan["layers"], "layer"), name_of(dtype), counted(plan["ranks"], "rank"));
  if (padded > parameters) {
    fmt::print("with padding {}, as each layer has equal shards\n", grouped(padded));
  }
  if (plan["ranks_found"]) {
    fmt::print("{}\n", any(fits) ? "the fewest ranks on which a chapter fits"
                                 : "no chapter fits on these or fewer, and more are not tried");
  }
  if (question.frozen > 0) {
    print_wrapped(fmt::format(
        "{} are trained ({} with padding), {} frozen: without gradients and "
        "optimizer state",
        grouped(plan["trainable"]), grouped(plan["padded_trainable"]), grouped(question.frozen)));
  }
  fmt::print("bytes a parameter: itself {}, its gradient {}, optimizer state {} ({})\n",
             bytes_of(dtype), costs.grads, costs.optimizer, convention.name);
  if (const auto& gathering = convention.gathering) {
    fmt::print("where layers are gathered: gradient {}, optimizer state {}\n", gathering->grads,
               gathering->optimizer);
  }
  if (!convention.costs && !needs_master(dtype) && any(offloads)) {
    fmt::print("where it is offloaded: optimizer state {}, with master weights of its own\n",
               optimizer_bytes(Dtype::bf16));
  }
  fmt::print("in a program's checkpoint {}: {}\n", checkpoint_bytes, sized(plan["checkpoint"]));
  const auto& [activations, formula] = question.activations;
  if (activations > 0) print_wrapped("activations, bytes: " + formula);
  if (question.parameters > 0) {
    fmt::print("{}data and workspace are not in it: they depend on the model\n",
               activations > 0 ? "" : "activations, ");
  }
  fmt::print("{0} are decimal: 1 {0} is {1} bytes\n\n", unit.name,
             grouped(static_cast<std::int64_t>(unit.size)));
}
}  // namespace

void print_deepspeed(const Json& file) {
  fmt::print("{}:", file["file"].get<std::string>());
  for (const auto& [option, value] : file["options"].items()) {
    fmt::print(" {} {}", option, value.get<std::string>());
  }
  fmt::print("\n");
  for (const Json& key : file["keys"]) {
    print_wrapped(fmt::format("  {} = {:.30}; here {}", key["key"].get<std::string>(),
                              key["value"].dump(), key["here"].get<std::string>()));
  }
  for (const auto& [list, what] : {std::pair{"nothing", "nothing here"}, {"unknown", "unknown"}}) {
    std::string names;
    for (const Json& name : file[list]) names += fmt::format(" {:.60}", name.dump());
    if (!names.empty()) print_wrapped(what + (":" + names));
  }
  fmt::print("\n");
}

void print_plan(const Question& question, const Json& plan) {
  if (plan.contains("deepspeed")) print_deepspeed(plan["deepspeed"]);
  const Table table(plan);
  const std::string on_ranks = counted(plan["ranks"], "rank");
  const bool host = std::ranges::any_of(plan["chapters"], offloads);
  print_head(question, plan, table.unit);
  table.row("", "/numbers");
  table.row("", "/name");
  table.section("held by a rank throughout");
  table.kinds("/held/");
  table.row("resident", "/resident");
  table.row("  state, bytes a param.", "/state_formula");
  if (question.frozen > 0) table.row("    a frozen one", "/frozen_formula");
  table.row("  of it saved", "/state_saved");
  table.section("borrowed within a step");
  table.kinds("/borrowed/");
  table.row("reserved", "/reserved");
  table.large("  by " + on_ranks, "/reserved_by_all_ranks");
  if (host) {
    table.section("on its host throughout");
    table.kinds("/host_kinds/");
    table.row("on the host", "/on_host");
    table.large("  by " + on_ranks, "/on_host_by_all_ranks");
    table.row("  bytes a param.", "/host_formula");
  }
  // As bytes are, but by name: 10^3, 10^6, ...
  const double size = table_unit(table.largest("/sent_elements")).size;
  fmt::print("\nsent by a rank in a step, 10^{:g} elements of {} bytes\n", std::log10(size),
             bytes_of(question.options.dtype));
  for (const Phase phase : step_phases) {
    table.row(fmt::format("  {}", name_of(phase)),
              fmt::format("/phases/{}/elements", name_of(phase)), size);
  }
  table.row("elements", "/sent_elements", size);
  table.row("  a param. x (N - 1)/N", "/sent_formula");
  if (question.frozen > 0) table.row("    a frozen one", "/frozen_sent_formula");
  table.large("  bytes", "/sent_bytes");
  table.row("  collectives", "/collectives");
  if (host) {
    table.section("copied by it over the bus in a step");
    table.row("  down, gradients", "/copied/down");
    table.row("  up, parameters", "/copied/up");
  }
  if (question.bus > 0) {
    fmt::print("\nover a bus of {:g} GB/s; Adam on the host takes time of its own\n", question.bus);
    table.row("copies, ms", "/copies_ms", 1);
  }
  if (question.link) {
    fmt::print("\non a link of {:g} Gbit/s and {:g} microseconds\n", question.link->gbit_per_s,
               question.link->latency_us);
    table.row("communication, ms", "/communication_ms", 1);
    if (question.compute_ms > 0) {
      table.row("step at most, ms", "/step_ms/at_most", 1);
      table.row("  at best, ms", "/step_ms/at_best", 1);
    }
  }
  if (question.card == 0) return;
  fmt::print("\non a card of {}\n", room(plan));
  table.row("fits on " + on_ranks, "/fits");
  table.row("fewest ranks", "/fewest_ranks");
  const std::string in = fmt::format(", {}", table.unit.name);
  table.row("  reserved then" + in, "/reserved_then");
  if (host) table.row("  on the host then" + in, "/on_host_then");
  table.row("  on one rank less" + in, "/reserved_on_one_less");
  table.row("  as N grows" + in, "/on_every_rank");
  table.row("  by formula alone", "/fewest_ranks_by_formula");
  fmt::print("\n");
  print_wrapped(plan["advice"]);
}

std::string advice(const Json& plan) {
  const Json& columns = plan["chapters"];
  const auto needed = [](const Json& column) {
    const Json& fewest = column["fewest_ranks"];
    return fewest.is_null() ? most_ranks + 1 : fewest.get<int>();
  };
  const auto name = [](const Json& column) -> std::string { return column["name"]; };
  const auto fitting = std::ranges::find_if(columns, fits);
  const auto kept = [](const Json& column) -> std::int64_t { return column["on_every_rank"]; };
  const Json& next = *std::ranges::min_element(columns, {}, needed);
  const Json& least = *std::ranges::min_element(columns, {}, kept);
  const std::string ranks = counted(plan["ranks"], "rank");
  std::string text;
  if (fitting != columns.end()) {
    text = fmt::format("Take {} on {} of {}: {}", name(*fitting), ranks, room(plan),
                       taken((*fitting)["reserved"], (*fitting)["on_host"]));
    if (fitting != columns.begin()) {
      const Json& before = *std::prev(fitting);
      text += fmt::format("; {} would need {}", name(before), sized(before["reserved"]));
      const int more = needed(before);
      if (offloads(*fitting) && more <= most_ranks) text += ", or " + counted(more, "rank");
    } else if (columns.size() > 1) {
      text += ", and no chapter sends less";
    }
    text += ".";
  } else if (needed(next) <= most_ranks) {
    text = fmt::format("None fits on {} of {}: take {} on {} or more, {}.", ranks, room(plan),
                       name(next), counted(needed(next), "rank"),
                       taken(next["reserved_then"], next["on_host_then"]));
  } else if (least["on_every_rank"] > plan["to_fill"]) {
    const Json& parameters = least["kinds"]["parameters"];
    const bool without = kept(least) - plan["activations"].get<std::int64_t>() <= plan["to_fill"];
    text = fmt::format(
        "None fits in {}, on however many ranks: even {} keeps {} on every rank; take larger cards "
        "or {}.",
        room(plan), name(least), sized(least["on_every_rank"]),
        without                                       ? "fewer activations"
        : parameters["peak"] > parameters["resident"] ? "smaller layers"
                                                      : "a later chapter");
  } else {
    text = fmt::format("None fits in {} on up to {}: take larger cards or smaller layers.",
                       room(plan), counted(most_ranks, "rank"));
  }
  std::vector<std::string> dearer;
  for (const Json& column : columns) {
    const double first_sends = columns[0]["sent_elements"];
    const double times = column["sent_elements"].get<double>() / first_sends;
    if (plan["accumulate"] == 1 || !(times > 1)) continue;  // no number where nothing is sent
    dearer.push_back(
        fmt::format("{}{} {:.4g} times", name(column), dearer.empty() ? " sends" : "", times));
  }
  if (!dearer.empty()) {
    text += fmt::format(" With {} micro-batches a step {} what {} does.",
                        plan["accumulate"].get<int>(), fmt::join(dearer, ", "), name(columns[0]));
  }
  return text;
}
}  // namespace zero
