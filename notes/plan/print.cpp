// SPDX-License-Identifier: MIT
// A plan in columns and in words.
#include <fmt/ranges.h>

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
  const auto part = [&](const char* key, const char* before) {
    return plan[key] > 0 ? before + sized(plan[key]) + " of " + key : "";
  };
  return sized(plan["card"]) + part("headroom", " with ") + part("host", " and ");
}

bool fits(const Json& column) { return column["fits"]; }
bool offloads(const Json& column) { return column["copied"]["to_device"] > 0; }

void print_wrapped(const std::string& text) {
  std::size_t at = 0;
  while (text.size() - at > page) {
    std::size_t end = text.rfind(' ', at + page);
    if (end == text.npos || end <= at) end = text.find(' ', at + page);  // a word is longer
    if (end == text.npos) break;
    fmt::print("{}\n", text.substr(at, end - at));
    at = end + 1;
  }
  fmt::print("{}\n", text.substr(at));
}

/// Wrapped to the page.
template <class... With>
void print_if(bool holds, fmt::format_string<const With&...> line, const With&... with) {
  if (holds) print_wrapped(fmt::format(line, with...));
}

/// A line of the table: a heading, or of every chapter what a path says, in so large a unit.
struct Row {
  std::string name, path{};  // a * is each kind of which there is any
  bool holds = true;
  double size = 0;  // 0: the table's
};

/// A chapter's answers as they are printed: some for others, some in words.
Json printed(const Json& chapter, const Json& plan) {
  Json column = chapter;
  for (const auto& [kind, bytes] : chapter["kinds"].items()) {
    column["borrowed"][kind] = double(bytes["peak"]) - double(bytes["resident"]);
  }
  column["state_saved"] = fmt::format("{:.2f} %", 100 * chapter["state_saved"].get<double>());
  int collectives = 0;
  for (const Json& phase : chapter["phases"]) collectives += phase["collectives"].get<int>();
  column["collectives"] = fmt::to_string(collectives);
  if (!plan.contains("card")) return column;
  for (const char* key : {"fewest_ranks", "fewest_ranks_by_formula"}) {
    if (!column[key].is_null()) column[key] = grouped(column[key]);
  }
  if (column["fewest_ranks"].is_null()) {
    const bool never = column["on_every_rank"] > plan["to_fill"];
    column["fewest_ranks"] = never ? "none" : fmt::format("> {}", most_ranks);
  }
  for (const char* key : {"reserved_then", "on_host_then", "reserved_on_one_less"}) {
    if (column[key] == 0) column[key] = nullptr;
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
        columns_.back()["numbers"].get_ref<std::string&>() += "/" + name.substr(0, 2);
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

  void print(const Row& row) const {
    if (!row.holds) return;
    if (const std::size_t star = row.path.find('*'); star != row.path.npos) {
      for (const std::string kind : names_of<Kind>) {
        const std::string path = std::string(row.path).replace(star, 1, kind);
        print({"  " + kind, path, largest(path) > 0});
      }
      return;
    }
    fmt::print("{}", row.name);
    // A long first cell may begin to the left of its column.
    int width = label + width_ - static_cast<int>(row.name.size());
    for (const Json& column : columns_) {
      if (row.path.empty()) break;
      const Json value = column.value(Json::json_pointer(row.path), Json(0));
      const double size = row.size > 0 ? row.size : unit.size;
      const std::string cell = value.is_string()    ? value.get<std::string>()
                               : value.is_boolean() ? (value ? "yes" : "no")
                               : value.is_null()    ? "-"
                                                    : fmt::format("{:.2f}", double(value) / size);
      fmt::print(" {:>{}}", cell, std::exchange(width, width_) - 1);
    }
    fmt::print("\n");
  }
  /// Of bytes that have a unit of their own.
  Row large(const std::string& name, const std::string& path, bool holds = true) const {
    const Unit own = unit_for(largest(path), 1e4);
    return {fmt::format("{}, {}", name, own.name), path, holds, own.size};
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
  const Costs costs = question.costs({.name = ""}), gathered = convention.gathering.value_or(costs);
  const auto any = [&](auto of) { return std::ranges::any_of(plan["chapters"], of); };
  const bool found = plan["ranks_found"], own = !convention.costs && !needs_master(dtype);
  const auto& [activations, formula, theirs] = question.activations;
  print_if(true, "{} in {}, {}, on {}", counted(parameters, "parameter"),
           counted(plan["layers"], "layer"), name_of(dtype), counted(plan["ranks"], "rank"));
  print_if(padded > parameters, "with padding {}, as each layer has equal shards", grouped(padded));
  print_if(found && any(fits), "the fewest ranks on which a chapter fits");
  print_if(found && !any(fits), "no chapter fits on these or fewer, and more are not tried");
  print_if(question.frozen > 0,
           "{} are trained ({} with padding), {} frozen: without gradients and optimizer state",
           grouped(plan["trainable"]), grouped(plan["padded_trainable"]), grouped(question.frozen));
  print_if(true, "bytes a parameter: itself {}, its gradient {}, optimizer state {} ({})",
           bytes_of(dtype), costs.grads, costs.optimizer, convention.name);
  print_if(convention.gathering.has_value(),
           "where layers are gathered: gradient {}, optimizer state {}", gathered.grads,
           gathered.optimizer);
  print_if(own && any(offloads),
           "where it is offloaded: optimizer state {}, with master weights of its own",
           optimizer_bytes(Dtype::bf16));
  print_if(true, "in a program's checkpoint {}: {}", checkpoint_bytes, sized(plan["checkpoint"]));
  print_if(activations > 0, "activations, bytes: {}", formula);
  print_if(theirs > 0, "in all {}; by Korthikanti and others, without the logits, {}",
           sized(activations), sized(theirs));
  print_if(question.parameters > 0, "{}data and workspace are not in it: they depend on the model",
           activations > 0 ? "" : "activations, ");
  print_if(true, "{0} are decimal: 1 {0} is {1} bytes\n", unit.name,
           grouped(static_cast<std::int64_t>(unit.size)));
}

void print_deepspeed(const Json& file) {
  fmt::print("{}:", file["file"].get<std::string>());
  for (const auto& [option, value] : file["options"].items()) {
    fmt::print(" {} {}", option, value.get<std::string>());
  }
  fmt::print("\n");
  for (const Json& key : file["keys"]) {
    print_if(true, "  {:.60} = {:.30}; here {}", key["key"].dump(), key["value"].dump(),
             key["here"].get<std::string>());
  }
  for (const auto& [list, what] : {std::pair{"nothing", "nothing here"}, {"unknown", "unknown"}}) {
    std::string names;
    for (const Json& name : file[list]) names += fmt::format(" {:.60}", name.dump());
    print_if(!names.empty(), "{}:{}", what, names);
  }
  fmt::print("\n");
}

/// Its layers, and what a block keeps for backward beside what Korthikanti's does, term by term.
void print_model(const Decoder& m) {
  const std::vector<std::int64_t> sizes = m.sizes();
  const std::int64_t h = m.hidden, a = m.heads, q = m.queries, f = m.intermediate;
  print_if(true, "{}: {}, {} of width {}, heads {}/{} of {}, hidden {}", m.file, m.type,
           counted(m.blocks, "block"), h, a, m.kv_heads, q / a, f);
  const std::pair<std::string, std::string> rows[] = {
      {grouped(sizes[0]), fmt::format("parameters: embedding of {} tokens", m.vocabulary)},
      {grouped(sizes[1]), "each block"},
      {grouped(sizes.back()), m.tied ? "last norm; the head is the embedding" : "last norm, head"},
      {grouped(std::ranges::max(sizes)), "the largest layer"},
      {grouped(m.of_logits()), "bytes a token in 16 bits: logits and their gradient"},
      {fmt::format("{} + {} s", grouped(m.beside()), m.of_pair()),
       "beside blocks, and in backward"},
      {fmt::format("{} + {} s", grouped(m.kept()), m.of_pair()), "each block, of s tokens"},
      {fmt::format("{} + {} s", grouped(34 * h), 5 * a), "Korthikanti's, 34 h + 5 a s; from there"},
      {fmt::format("-{} - {} s", 2 * h, 3 * a), "no dropout: no masks, no masked matrix"},
      {fmt::format("{:+}", 8 * (q - h)), "heads that are not h wide in all"},
      {fmt::format("{:+}", 4 * (m.keys - q)), "fewer heads of keys and values"},
      {fmt::format("{:+}", 6 * f - 16 * h), "SwiGLU: three f, as GELU's two of 4 h if f = 8/3 h"}};
  for (const auto& [number, what] : rows) print_if(number != "+0", "  {:<17}{}", number, what);
  fmt::print("\n");
}
}  // namespace

void print_plan(const Question& question, const Json& plan) {
  if (plan.contains("deepspeed")) print_deepspeed(plan["deepspeed"]);
  if (question.model) print_model(*question.model);
  const Table table(plan);
  print_head(question, plan, table.unit);
  const std::string on_ranks = counted(plan["ranks"], "rank"), by = "  by " + on_ranks;
  const std::string in = fmt::format(", {}", table.unit.name);
  const Link link = question.link.value_or(Link{});
  const bool host = std::ranges::any_of(plan["chapters"], offloads), card = question.card > 0;
  const bool frozen = question.frozen > 0, bus = question.bus > 0, sent = question.link.has_value();
  const bool computes = sent && question.compute_ms > 0;
  // As bytes are, but by name: 10^3, 10^6, ...
  const double elements = table_unit(table.largest("/sent_elements")).size;
  const Row rows[] = {
      {"", "/numbers"},
      {"", "/name"},
      {"held by a rank throughout" + in},
      {"", "/kinds/*/resident"},
      {"resident", "/resident"},
      {"  state, bytes a param.", "/state_formula"},
      {"    a frozen one", "/frozen_formula", frozen},
      {"  of it saved", "/state_saved"},
      {"borrowed within a step" + in},
      {"", "/borrowed/*"},
      {"reserved", "/reserved"},
      table.large(by, "/reserved_by_all_ranks"),
      {"on its host throughout" + in, "", host},
      {"", "/host_kinds/*", host},
      {"on the host", "/on_host", host},
      table.large(by, "/on_host_by_all_ranks", host),
      {"  bytes a param.", "/host_formula", host},
      {fmt::format("\nsent by a rank in a step, 10^{:g} elements of {} bytes", std::log10(elements),
                   bytes_of(question.options.dtype))},
      {"  forward", "/phases/forward/elements", true, elements},
      {"  backward", "/phases/backward/elements", true, elements},
      {"  update", "/phases/update/elements", true, elements},
      {"elements", "/sent_elements", true, elements},
      {"  a param. x (N - 1)/N", "/sent_formula"},
      {"    a frozen one", "/frozen_sent_formula", frozen},
      table.large("  bytes", "/sent_bytes"),
      {"  collectives", "/collectives"},
      {"copied by it over the bus in a step" + in, "", host},
      {"  to the host", "/copied/to_host", host},
      {"  to the device", "/copied/to_device", host},
      {fmt::format("\nover a bus of {:g} GB/s; Adam on the host takes time of its own",
                   question.bus),
       "", bus},
      {"copies, ms", "/copies_ms", bus, 1},
      {fmt::format("\non a link of {:g} Gbit/s and {:g} microseconds", link.gbit_per_s,
                   link.latency_us),
       "", sent},
      {"communication, ms", "/communication_ms", sent, 1},
      {"step at most, ms", "/step_ms/at_most", computes, 1},
      {"  at best, ms", "/step_ms/at_best", computes, 1},
      {card ? "\non a card of " + room(plan) : "", "", card},
      {"fits on " + on_ranks, "/fits", card},
      {"fewest ranks", "/fewest_ranks", card},
      {"  reserved then" + in, "/reserved_then", card},
      {"  on the host then" + in, "/on_host_then", card && host},
      {"  on one rank less" + in, "/reserved_on_one_less", card},
      {"  as N grows" + in, "/on_every_rank", card},
      {"  by formula alone", "/fewest_ranks_by_formula", card}};
  for (const Row& row : rows) table.print(row);
  if (!card) return;
  fmt::print("\n");
  print_wrapped(plan["advice"]);
}

std::string advice(const Json& plan) {
  const Json& columns = plan["chapters"];
  const auto name = [](const Json& column) -> std::string { return column["name"]; };
  const auto kept = [](const Json& column) -> std::int64_t { return column["on_every_rank"]; };
  const auto fitting = std::ranges::find_if(columns, fits);
  const Json& next = *std::ranges::min_element(columns, {}, ranks_needed);
  const Json& least = *std::ranges::min_element(columns, {}, kept);
  const std::string ranks = counted(plan["ranks"], "rank"), has = room(plan);
  std::string text;
  if (fitting != columns.end()) {
    text = fmt::format("Take {} on {} of {}: {}", name(*fitting), ranks, has,
                       taken((*fitting)["reserved"], (*fitting)["on_host"]));
    if (fitting != columns.begin()) {
      const Json& before = *std::prev(fitting);
      text += fmt::format("; {} would need {}", name(before), sized(before["reserved"]));
      const int more = ranks_needed(before);
      if (offloads(*fitting) && more <= most_ranks) text += ", or " + counted(more, "rank");
    } else if (columns.size() > 1) {
      text += ", and no chapter sends less";
    }
    text += '.';
  } else if (const int more = ranks_needed(next); more <= most_ranks) {
    text = fmt::format("None fits on {} of {}: take {} on {} or more, {}.", ranks, has, name(next),
                       counted(more, "rank"), taken(next["reserved_then"], next["on_host_then"]));
  } else if (kept(least) > plan["to_fill"]) {
    const Json& parameters = least["kinds"]["parameters"];
    const bool whole_layers = parameters["peak"] > parameters["resident"];
    const bool without = kept(least) - plan["activations"].get<std::int64_t>() <= plan["to_fill"];
    const std::string or_else = whole_layers ? "smaller layers" : "a later chapter";
    text = fmt::format(
        "None fits in {}, on however many ranks: even {} keeps {} on every rank; take larger cards "
        "or {}.",
        has, name(least), sized(kept(least)), without ? "fewer activations" : or_else);
  } else {
    text = fmt::format("None fits in {} on up to {}: take larger cards or smaller layers.", has,
                       counted(most_ranks, "rank"));
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
