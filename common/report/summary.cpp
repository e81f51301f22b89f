// SPDX-License-Identifier: MIT
#include <fstream>
#include <nlohmann/json.hpp>

#include "memory/throw_if.hpp"
#include "report/report.hpp"

namespace zero {
namespace {
using Pointer = Json::json_pointer;
constexpr const char* unexplained = "unexplained: no longer held at the end";

/// By kind. Of the host those alone that it holds, or was to hold.
Json bytes_json(const Prediction& predicted, const Device& on) {
  Json rows;
  for (const Kind kind : every<Kind>) {
    const KindBytes& booked = on.ledger.of(kind);
    const auto& [resident, peak, formula] = predicted.bytes[on.place][kind];
    if (on.place == Place::host && booked.reserved == 0 && peak == 0) continue;
    rows[name_of(kind)] = {{"predicted", peak},
                           {"predicted_resident", resident},
                           {"resident", booked.resident},
                           {"reserved", booked.reserved},
                           {"peak", booked.peak}};
  }
  return rows;
}

Json phases_json(const Run& run, const Prediction& predicted, int steps, int rank) {
  Json rows;
  for (const MemoryPhase& at : memory_phases(run.recorder.booked(), steps)) {
    const char* phase = at.phase == Phase::setup ? "start" : name_of(at.phase);
    Json& row = rows.emplace_back(Json{{"step", at.step}, {"phase", phase}, {"rank", rank}});
    for (const Kind kind : every<Kind>) {
      row["bytes"][name_of(kind)] = at.bytes[kind];
      row["predicted"][name_of(kind)] = predicted.after[at.phase][kind];
    }
    row.update({{"in_use", at.in_use}, {"change", at.change}, {"peak", at.peak}});
    row["all_ranks"] = {{"in_use", at.in_use}, {"peak", at.peak}};
  }
  return rows;
}

Json process_json(const Run& run, const Footprint& end, int rank) {
  const bool gpu = run.device.type == DeviceType::cuda;
  auto [before, messages, trainer] = run.footprints;
  // Where tensors lie in what was there before them, it is in their row, and in no other.
  trainer.other = std::min(trainer.other, end.other);
  messages.other = std::min(messages.other, trainer.other);
  before.other = std::min(before.other, messages.other);
  // Of a GPU nobody says which of its ranks takes what.
  const std::int64_t total = gpu && run.choice.sharing > 1 ? 0 : end.total;
  Json rows = {{"tensors, as reserved", end.tensors},
               {"what fills their huge pages", end.rounding},
               {"before the run", before.other},
               {"taken with data and messages", messages.other - before.other},
               {"taken with the trainer", trainer.other - messages.other},
               {"taken in the steps", end.other - trainer.other},
               {"mapped files: code, libraries", end.files},
               {"shared with other ranks", end.shared}};
  std::int64_t rest = total;
  for (const Json& bytes : rows) rest -= bytes.get<std::int64_t>();
  rows[unexplained] = rest;
  return {{"rank", rank}, {"gpu", gpu}, {"total", total}, {"rows", rows}};
}

/// A row of what passes, with its times in a step: those of that sort, of that phase or direction.
Json traffic_json(std::int64_t predicted, const Json& counted,
                  const std::vector<OverlapTimes>& steps, auto sort, auto of) {
  const auto median = [&](auto figure) {
    std::vector<std::chrono::microseconds> times;
    for (const OverlapTimes& step : steps) {
      times.push_back(std::chrono::floor<std::chrono::microseconds>((step.*sort)[of].*figure));
    }
    return times.empty() ? Json() : Json(median_ms(times));
  };
  return {{"predicted", predicted},
          {"counted", counted},
          {"exposed_ms", median(&OverlapTime::exposed)},
          {"hidden_ms", median(&OverlapTime::hidden)}};
}

Json traffic_json(const Prediction::Traffic& predicted, const std::vector<OverlapTimes>& times,
                  const Communicator& comm) {
  // What a library sends within its own collectives, nobody else can count.
  const auto if_counted = [&](std::int64_t sent) { return comm.counts() ? Json(sent) : Json(); };
  const Sent& sent = comm.sent();
  Json phases, collectives;
  for (const Phase phase : step_phases) {
    std::int64_t in_phase = 0;
    for (const Collective collective : {Collective::reduce_scatter, Collective::all_gather}) {
      const std::int64_t elements = sent.elements[collective][phase];
      collectives[name_of(collective)][name_of(phase)] = if_counted(elements);
      in_phase += elements;
    }
    phases[name_of(phase)] = traffic_json(predicted.sent[phase], if_counted(in_phase), times,
                                          &OverlapTimes::messages, phase);
  }
  return {{"phases", phases},
          {"collectives", collectives},
          {"padding", {{"predicted", predicted.padding}, {"counted", if_counted(sent.padding)}}},
          {"scalars", {{"predicted", predicted.scalars}, {"counted", sent.scalars}}}};
}

Json of_this_rank(const Run& run, const Prediction& predicted, Prediction::Steps steps,
                  const std::vector<OverlapTimes>& times, const Json& outcome,
                  const Communicator& comm) {
  const Footprint end = footprint(run.device);
  const Prediction::Traffic traffic = predicted.traffic(steps);
  Json memory = bytes_json(predicted, run.device);
  std::int64_t resident = 0;
  for (const Json& kind : memory) resident += kind["resident"].get<std::int64_t>();
  // On a GPU beside what is reserved: context, libraries. Null where other ranks may use it.
  const bool alone = run.device.type == DeviceType::cuda && comm.size == 1;
  memory["total"] = {{"resident", resident},
                     {"reserved", run.device.ledger.reserved()},
                     {"peak", run.device.ledger.peak_of_total()},
                     {"process_peak", end.peak - run.footprints[0].peak},
                     {"beyond", alone ? Json(end.other) : Json()}};
  Json mine = {{"process", process_json(run, end, comm.rank)},
               {"memory", memory},
               {"phases", phases_json(run, predicted, static_cast<int>(steps.all), comm.rank)},
               {"traffic", traffic_json(traffic, times, comm)}};
  mine.update(outcome);
  if (!run.card.offloads()) return mine;
  mine["host_memory"] = bytes_json(predicted, run.device.host());
  for (const Direction way : every<Direction>) {
    mine["bus"][name_of(way)] = traffic_json(traffic.copied[way], run.device.bus.bytes[way].load(),
                                             times, &OverlapTimes::transfers, way);
  }
  return mine;
}
}  // namespace

Footprint footprint(Device& device) {
  std::map<std::string, std::int64_t> kib;  // by the kernel's names; 0 where it has none
  std::ifstream status("/proc/self/status");  // read once: it is all of one moment
  for (std::string word; status >> word;) {
    if (word == "VmHWM:" || word.starts_with("Rss")) status >> kib[word];
  }
  Footprint now{.peak = 1024 * kib["VmHWM:"], .tensors = device.ledger.reserved()};
  if (device.type == DeviceType::cuda) {
    now.total = device.in_use();
    now.other = now.total - now.tensors;
    return now;
  }
  now.total = now.peak;
  now.tensors += device.host().ledger.reserved();
  now.rounding = device.rounding + device.host().rounding;
  now.other = 1024 * kib["RssAnon:"] - now.tensors - now.rounding;
  now.files = 1024 * kib["RssFile:"], now.shared = 1024 * kib["RssShmem:"];
  return now;
}

double median_ms(std::vector<std::chrono::microseconds> times) {
  const auto first = times.begin() + (times.size() > 3 ? 3 : 0);
  const auto middle = first + (times.end() - first) / 2;
  std::nth_element(first, middle, times.end());
  return milliseconds(*middle);
}

Json summarise(const Run& run, const Prediction& predicted, Prediction::Steps steps,
               const std::vector<OverlapTimes>& times, const Json& outcome, Communicator& comm) {
  Json all = of_this_rank(run, predicted, steps, times, outcome, comm);
  std::vector<Json> ranks;
  for (const std::string& text : comm.gather_texts(all.dump())) ranks.push_back(Json::parse(text));
  const auto peak = [](const Json& row) { return row["peak"].get<std::int64_t>(); };
  const auto largest_peak = [&](const Json& rank) {
    return peak(*std::ranges::max_element(rank["phases"], {}, peak));
  };
  const auto total = [](const Json& rank) { return rank["process"]["total"].get<std::int64_t>(); };
  all["phases"] = std::ranges::max(ranks, {}, largest_peak)["phases"];
  all["process"] = std::ranges::max(ranks, {}, total)["process"];
  const Json figures = all.flatten();
  for (const auto& [name, figure] : figures.items()) {
    const bool added = name == "/traffic/padding/counted" || name.find("/all_ranks/") != name.npos;
    const bool of_one = name.starts_with("/phases/") || name.starts_with("/process/");
    if (!figure.is_number() || (of_one && !added)) continue;
    const Pointer place(name);
    std::int64_t sum = 0;
    for (const Json& rank : ranks) {
      all[place] = std::max(all[place], rank[place]);
      sum += rank[place].get<std::int64_t>();
    }
    if (added) all[place] = sum;
  }
  if (all["process"]["total"] == 0) all["process"] = nullptr;
  return all;
}

void check_counts(const Json& summary) {
  const auto check = [](const std::string& what, const Json& predicted, const Json& counted) {
    throw_if(!counted.is_null() && predicted != counted, ExitCode::numerics,
             "{}: {} counted, {} predicted", what, counted.dump(), predicted.dump());
  };
  const auto check_rows = [&](const char* rows, const char* what, const char* where = "") {
    const Json found = summary.value(Pointer(rows), Json::object());
    for (const auto& [name, row] : found.items()) {
      for (const auto& [predicted, counted, sort] :
           {std::array{"predicted_resident", "resident", " held"},
            {"predicted", "peak", " at the peak"},
            {"predicted", "reserved", " reserved"},
            {"predicted", "counted", ""}}) {
        if (!row.contains(predicted) || !row.contains(counted)) continue;
        check(fmt::format("{} {}{}{}", what, name, where, sort), row[predicted], row[counted]);
      }
    }
  };
  check_rows("/memory", "bytes of");
  check_rows("/host_memory", "bytes of", " on the host");
  check_rows("/bus", "bytes copied");
  for (const Json& row : summary["phases"]) {
    const int step = row["step"];
    const std::string phase = row["phase"];
    const std::string when = step == 0 ? phase : fmt::format("{} of step {}", phase, step);
    for (const auto& [kind, bytes] : row["bytes"].items()) {
      check("bytes of " + kind + " after " + when, row["predicted"][kind], bytes);
    }
    if (step == 0) check("bytes at the peak of the start", row["in_use"], row["peak"]);
  }
  check_rows("/traffic/phases", "elements sent in");
  check_rows("/traffic", "elements sent in");
}

namespace {
/// Empty where there is none.
std::string cell(const Json& row, const char* figure) {
  const Json number = row.value(figure, Json());
  if (number.is_number_float()) return fmt::format("{:.2f}", number.get<double>());
  return number.is_number() ? grouped(number) : "";
}

void print_held(const std::string& name, const Json& row) {
  fmt::print("  {:<16}  {:>13}  {:>13}  {:>13}  {:>13}\n", name, cell(row, "predicted"),
             cell(row, "peak"), cell(row, "resident"), cell(row, "reserved"));
}

void print_passed(const std::string& name, const Json& row) {
  const std::string counted = row["counted"].is_null() ? "by formula" : cell(row, "counted");
  fmt::print("  {:<18}  {:>15}  {:>15} {:>12} {:>11}\n", name, cell(row, "predicted"), counted,
             cell(row, "exposed_ms"), cell(row, "hidden_ms"));
}

void print_passed_head(const char* what, const char* times) {
  fmt::print("\n{:<54}{:>25}\n{:<20}{:>17}{:>17}{:>13}{:>12}\n", what, times, "", "predicted",
             "counted", "exposed", "hidden");
}

/// Of a step's phases, for the first step with the start before them.
void print_step(std::span<const Json> rows) {
  const int width = rows.size() == every<Phase>.size() ? 15 : 15 + 13;
  const auto line = [&](const std::string& label, const std::string& figure) {
    fmt::print("{:<{}}", label, width);
    for (const Json& row : rows) {
      const Json& held = row.at(Pointer(figure));
      const std::string spaced = held.is_string() ? held.get<std::string>() : grouped(held);
      // From a thousand million on without spaces: in at most 12 columns.
      fmt::print(" {:>12}", spaced.size() <= 12 ? spaced : held.dump());
    }
    fmt::print("\n");
  };
  fmt::print("\n");
  line(fmt::format("step {}, after", rows.back()["step"].get<int>()), "/phase");
  for (const std::string kind : names_of<Kind>) {
    const auto held = [&](const Json& row) { return row["bytes"][kind] != 0; };
    if (std::ranges::any_of(rows, held)) line("  " + kind, "/bytes/" + kind);
  }
  line("  all together", "/in_use");
  line("  change", "/change");
  line("  peak within", "/peak");
  line("all ranks", "/all_ranks/in_use");
  line("  their peaks", "/all_ranks/peak");
}
}  // namespace

void print_tables(const Json& summary, bool alone) {
  const bool host = summary.contains("host_memory");
  fmt::print("\n{:<18}{:>15}{:>15}{:>15}{:>15}\n", host ? "bytes on a device" : "bytes of a rank",
             "predicted", "peak", "resident", "reserved");
  for (const auto& [name, row] : summary["memory"].items()) {
    if (name == name_of(Kind::workspace) && row["reserved"] == 0) continue;  // a GPU's alone
    print_held(name == "total" ? "all together" : name, row);
  }
  if (const Json& beyond = summary["memory"]["total"]["beyond"]; !beyond.is_null()) {
    fmt::print("  {:<61}{:>15}\n", "beyond the formulas: context, libraries", grouped(beyond));
  }
  if (host) {
    fmt::print("on its host\n");
    for (const auto& [name, row] : summary["host_memory"].items()) print_held(name, row);
  }
  if (!alone) {
    const Json& traffic = summary["traffic"];
    print_passed_head("elements sent in all steps", "ms of messages in a step");
    for (const auto& [phase, row] : traffic["phases"].items()) print_passed(phase, row);
    print_passed("padding, all ranks", traffic["padding"]);
    print_passed("scalars", traffic["scalars"]);
  }
  if (!host) return;
  print_passed_head("bytes copied in all steps", "ms of copies in a step");
  for (const Direction way : every<Direction>) {
    print_passed(copied_words[way], summary["bus"][name_of(way)]);
  }
}

void print_memory(const Json& summary) {
  const std::vector<Json> rows = summary["phases"];
  fmt::print("\nbytes in use on rank {}, and on all ranks together, in program order\n",
             rows[0]["rank"].get<int>());
  constexpr std::size_t first = every<Phase>.size();  // and of the second step all but the start
  print_step(std::span(rows).first(first));
  if (rows.size() > first) print_step(std::span(rows).subspan(first));
  int equal = 0, all = 0;
  for (const Json& row : rows) {
    for (const auto& [kind, bytes] : row["bytes"].items()) {
      const Json& formula = row["predicted"][kind];
      all += bytes != 0 || formula != 0;
      equal += bytes != 0 && bytes == formula;
    }
  }
  fmt::print("\nafter a phase, by kind: {} of {} figures equal the chapter's formulas\n", equal,
             all);
  const Json& process = summary["process"];
  if (process.is_null()) return;
  fmt::print("\nbytes {} of rank {}, by the {}\n",
             process["gpu"] ? "in use on the GPU" : "at the peak of the process",
             process["rank"].get<int>(), process["gpu"] ? "driver" : "system");
  const auto print_bytes = [](const std::string& name, const Json& bytes) {
    fmt::print("  {:<48}{:>15}\n", name, grouped(bytes));
  };
  for (const auto& [name, bytes] : process["rows"].items()) {
    if (bytes != 0 || name == unexplained) print_bytes(name, bytes);
  }
  print_bytes("all together", process["total"]);
}
}  // namespace zero
