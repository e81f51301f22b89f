// SPDX-License-Identifier: MIT
#include "report/summary.hpp"

#include <numeric>

#include "memory/throw_if.hpp"
#include "trace/memory_phases.hpp"

namespace zero {
namespace {
using Pointer = Json::json_pointer;
constexpr const char* unexplained = "unexplained: no longer held at the end";

/// By kind. Of the host those alone that it holds, or was to hold.
Json bytes_json(Place place, const std::array<Prediction::Bytes, kind_count>& predicted) {
  Json rows;
  for (int k = 0; k < kind_count; ++k) {
    const KindBytes& booked = ledger(place).of(static_cast<Kind>(k));
    if (place == Place::host && booked.reserved == 0 && predicted[k].peak == 0) continue;
    rows[name_of(static_cast<Kind>(k))] = {{"predicted", predicted[k].peak},
                                           {"predicted_resident", predicted[k].resident},
                                           {"resident", booked.resident},
                                           {"reserved", booked.reserved},
                                           {"peak", booked.peak}};
  }
  return rows;
}

/// Of all kinds; of the process, above its peak before the run; beyond: in use on a GPU beside what
/// is reserved, its context, cuBLAS, NCCL. None on the CPU, nor where other ranks may use the same.
Json total_json(const Run& run, const Json& kinds, int ranks) {
  std::int64_t resident = 0;
  for (const Json& kind : kinds) resident += kind["resident"].get<std::int64_t>();
  Json beyond;
  if (run.choice.device == Device::cuda && ranks == 1) {
    DeviceMemory& gpu = memory_of(Device::cuda);
    beyond = gpu.total() - gpu.available() - ledger().reserved();
  }
  return {{"resident", resident},
          {"reserved", ledger().reserved()},
          {"peak", ledger().peak_of_total()},
          {"process_peak", process_bytes().peak - run.footprints[0].process.peak},
          {"beyond", beyond}};
}

Json phases_json(const Run& run, const Prediction& predicted, int steps, int rank) {
  Json rows;
  for (const MemoryPhase& at : memory_phases(run.recorder.booked(), steps)) {
    Json row = {{"step", at.step},
                {"phase", at.phase == Phase::setup ? "start" : name_of(at.phase)},
                {"rank", rank}};
    for (int k = 0; k < kind_count; ++k) {
      const char* const kind = name_of(static_cast<Kind>(k));
      row["bytes"][kind] = at.bytes[k];
      row["predicted"][kind] = predicted.after[static_cast<int>(at.phase)][k];
    }
    row.update({{"in_use", at.in_use}, {"change", at.change}, {"peak", at.peak}});
    row["all_ranks"] = {{"in_use", at.in_use}, {"peak", at.peak}};
    rows.push_back(row);
  }
  return rows;
}

Json process_json(const Run& run, int rank) {
  const bool gpu = run.choice.device == Device::cuda;
  const Footprint end = footprint(run.choice.device);
  const auto& [before, messages, trainer] = run.footprints;
  const std::int64_t total = !gpu                      ? end.process.peak
                             : run.choice.sharing == 1 ? end.tensors + end.other
                                                       : 0;
  Json rows = {{"tensors, as reserved", end.tensors},
               {"what fills their huge pages", end.rounding},
               {"before the run", before.other},
               {"taken with data and messages", messages.other - before.other},
               {"taken with the trainer", trainer.other - messages.other},
               {"taken in the steps", end.other - trainer.other},
               {"mapped files: code, libraries", gpu ? 0 : end.process.files},
               {"shared with other ranks", gpu ? 0 : end.process.shared}};
  std::int64_t rest = total;
  for (const Json& bytes : rows) rest -= bytes.get<std::int64_t>();
  rows[unexplained] = rest;
  return {{"rank", rank}, {"gpu", gpu}, {"total", total}, {"rows", rows}};
}

/// A row of what passes: time_in(step): how long that took.
Json passed_json(std::int64_t predicted, const Json& counted,
                 const std::vector<OverlapTimes>& steps, const auto& time_in) {
  const auto median = [&](auto figure) {
    std::vector<std::chrono::microseconds> times;
    for (const OverlapTimes& step : steps) {
      times.push_back(std::chrono::floor<std::chrono::microseconds>(time_in(step).*figure));
    }
    return times.empty() ? Json() : Json(median_ms(times));
  };
  return {{"predicted", predicted},
          {"counted", counted},
          {"exposed_ms", median(&OverlapTime::exposed)},
          {"hidden_ms", median(&OverlapTime::hidden)}};
}

Json traffic_json(const Prediction& predicted, Prediction::Steps steps,
                  const std::vector<OverlapTimes>& times, const Communicator& comm) {
  // What a library sends within its own collectives, nobody else can count.
  const auto if_counted = [&](std::int64_t sent) { return comm.counts() ? Json(sent) : Json(); };
  const Sent& sent = comm.sent();
  Json phases, collectives;
  for (const Phase phase : step_phases) {
    const int p = static_cast<int>(phase);
    std::int64_t in_phase = 0;
    for (int c = 0; c < collective_count; ++c) {
      collectives[name_of(static_cast<Collective>(c))][name_of(phase)] =
          if_counted(sent.elements[c][p]);
      in_phase += sent.elements[c][p];
    }
    phases[name_of(phase)] =
        passed_json(predicted.sent(phase, steps), if_counted(in_phase), times,
                    [p](const OverlapTimes& step) { return step.messages[p]; });
  }
  return {{"phases", phases},
          {"collectives", collectives},
          {"padding",
           {{"predicted", predicted.padding_sent(steps)}, {"counted", if_counted(sent.padding)}}},
          {"scalars", {{"predicted", predicted.scalars_sent(steps)}, {"counted", sent.scalars}}}};
}
}  // namespace

double median_ms(std::vector<std::chrono::microseconds> times) {
  const auto first = times.begin() + (times.size() > 3 ? 3 : 0);
  const auto middle = first + (times.end() - first) / 2;
  std::nth_element(first, middle, times.end());
  return milliseconds(*middle);
}

Json counted_on_device(const Run& run, const Prediction& predicted, Prediction::Steps steps,
                       const std::vector<OverlapTimes>& times, const Communicator& comm) {
  Json mine = {{"process", process_json(run, comm.rank)},
               {"memory", bytes_json(Place::device, predicted.bytes)},
               {"phases", phases_json(run, predicted, static_cast<int>(steps.all), comm.rank)},
               {"traffic", traffic_json(predicted, steps, times, comm)}};
  mine["memory"]["total"] = total_json(run, mine["memory"], comm.size);
  return mine;
}

Json counted_on_host(const Prediction& predicted, Prediction::Steps steps,
                     const std::vector<OverlapTimes>& times) {
  Json mine = {{"host_memory", bytes_json(Place::host, predicted.on_host)}};
  for (const Direction way : {Direction::down, Direction::up}) {
    mine["bus"][name_of(way)] = passed_json(
        predicted.copied(way, steps), bus().of(way), times,
        [&](const OverlapTimes& step) { return step.transfers[static_cast<int>(way)]; });
  }
  return mine;
}

Json over_ranks(const Json& mine, Communicator& comm) {
  std::vector<Json> ranks;
  for (const std::string& text : comm.gather_texts(mine.dump())) {
    ranks.push_back(Json::parse(text));
  }
  const auto largest_peak = [](const Json& rank) {
    std::int64_t largest = 0;
    for (const Json& row : rank["phases"]) largest = std::max<std::int64_t>(largest, row["peak"]);
    return largest;
  };
  const auto total = [](const Json& rank) { return rank["process"]["total"].get<std::int64_t>(); };
  Json all = mine;
  all["phases"] = (*std::ranges::max_element(ranks, {}, largest_peak))["phases"];
  all["process"] = (*std::ranges::max_element(ranks, {}, total))["process"];
  const Json figures = all.flatten();
  for (const auto& [name, figure] : figures.items()) {
    const bool added = name == "/traffic/padding/counted" || name.find("/all_ranks/") != name.npos;
    const bool of_one = name.starts_with("/phases/") || name.starts_with("/process/");
    if (!figure.is_number() || (of_one && !added)) continue;
    const Pointer place(name);
    Json& of_all = all[place];
    std::int64_t sum = 0;
    for (const Json& rank : ranks) {
      sum += rank[place].get<std::int64_t>();
      of_all = std::max(of_all, rank[place]);
    }
    if (added) of_all = sum;
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
/// Of what passes, its sum and its times in a step, where there are any.
void print_passed(const std::string& name, const Json& row) {
  const Json& figure = row["counted"];
  const auto time = [&](const char* key) {
    return row.value(key, Json()).is_null() ? "" : fmt::format("{:.2f}", row[key].get<double>());
  };
  fmt::print("  {:<18}{:>17}{:>17}{:>13}{:>12}\n", name, grouped(row["predicted"]),
             figure.is_null() ? "by formula" : grouped(figure), time("exposed_ms"),
             time("hidden_ms"));
}

/// In at most 12 columns: from a thousand million on without spaces.
std::string cell(const Json& bytes) {
  const std::string spaced = grouped(bytes);
  return spaced.size() <= 12 ? spaced : bytes.dump();
}

/// shown: a row for each column of the table, null for an empty one.
void print_step(const std::vector<Json>& shown) {
  const auto line = [&](const std::string& label, const std::string& figure) {
    fmt::print("{:<15}", label);
    for (const Json& row : shown) {
      fmt::print("{:>13}", row.is_null() ? "" : cell(row.at(Pointer(figure))));
    }
    fmt::print("\n");
  };
  fmt::print("\n{:<15}", fmt::format("step {}, after", shown.back()["step"].get<int>()));
  for (const Json& row : shown) {
    fmt::print("{:>13}", row.is_null() ? "" : row["phase"].get<std::string>());
  }
  fmt::print("\n");
  for (const auto& [kind, bytes] : shown.back()["bytes"].items()) {
    const auto has = [&, &kind = kind](const Json& row) {
      return !row.is_null() && row["bytes"][kind] != 0;
    };
    if (std::ranges::any_of(shown, has)) line("  " + kind, "/bytes/" + kind);
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
  const auto print_bytes = [&](const char* name, const Json& bytes) {
    fmt::print("  {:<16}", name);
    for (const char* figure : {"predicted", "peak", "resident", "reserved"}) {
      fmt::print("{:>15}", bytes.contains(figure) ? grouped(bytes[figure]) : "");
    }
    fmt::print("\n");
  };
  fmt::print("\n{:<18}{:>15}{:>15}{:>15}{:>15}\n", host ? "bytes on a device" : "bytes of a rank",
             "predicted", "peak", "resident", "reserved");
  for (const auto& [name, bytes] : summary["memory"].items()) {
    if (name == name_of(Kind::workspace) && bytes["reserved"] == 0) continue;  // a GPU's alone
    print_bytes(name == "total" ? "all together" : name.c_str(), bytes);
  }
  if (const Json& beyond = summary["memory"]["total"]["beyond"]; !beyond.is_null()) {
    fmt::print("  {:<61}{:>15}\n", "beyond the formulas: context, libraries", grouped(beyond));
  }
  if (host) {
    fmt::print("on its host\n");
    for (const auto& [name, bytes] : summary["host_memory"].items()) {
      print_bytes(name.c_str(), bytes);
    }
  }
  const auto print_head = [](const char* what, const char* times) {
    fmt::print("\n{:<54}{:>25}\n{:<20}{:>17}{:>17}{:>13}{:>12}\n", what, times, "", "predicted",
               "counted", "exposed", "hidden");
  };
  if (!alone) {
    print_head("elements sent in all steps", "ms of messages in a step");
    const Json& traffic = summary["traffic"];
    for (const auto& [name, sent] : traffic["phases"].items()) print_passed(name, sent);
    print_passed("padding, all ranks", traffic["padding"]);
    print_passed("scalars", traffic["scalars"]);
  }
  if (!host) return;
  print_head("bytes copied in all steps", "ms of copies in a step");
  print_passed("down, gradients", summary["bus"]["down"]);
  print_passed("up, parameters", summary["bus"]["up"]);
}

void print_memory(const Json& summary) {
  const Json& phases = summary["phases"];
  fmt::print("\nbytes in use on rank {}, and on all ranks together\n",
             phases[0]["rank"].get<int>());
  std::vector<Json> shown;
  int equal = 0, all = 0;
  for (const Json& row : phases) {
    shown.push_back(row);
    for (const auto& [kind, bytes] : row["bytes"].items()) {
      const Json& formula = row["predicted"][kind];
      all += bytes != 0 || formula != 0;
      equal += bytes != 0 && bytes == formula;
    }
    if (shown.size() < phase_count) continue;
    print_step(shown);
    shown = {Json()};  // no start
  }
  fmt::print("\nafter a phase, by kind: {} of {} figures equal the chapter's formulas\n", equal,
             all);
  const Json& process = summary["process"];
  if (process.is_null()) return;
  fmt::print("\nbytes {} of rank {}, by the {}\n",
             process["gpu"] ? "in use on the GPU" : "at the peak of the process",
             process["rank"].get<int>(), process["gpu"] ? "driver" : "system");
  for (const auto& [name, bytes] : process["rows"].items()) {
    const bool told = bytes != 0 || name == unexplained;
    if (told) fmt::print("  {:<48}{:>15}\n", name, grouped(bytes));
  }
  fmt::print("  {:<48}{:>15}\n", "all together", grouped(process["total"]));
}
}  // namespace zero
