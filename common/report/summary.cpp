// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "memory/throw_error.hpp"
#include "report/report.hpp"

namespace zero {
namespace {
using Pointer = Json::json_pointer;
constexpr By<Place, const char*> memory_names{"memory", "host_memory", "disk_memory"},
    bus_names{"bus", "", "disk"};

/// By kind. Of host and disk those alone that they hold, or were to hold.
Json bytes_json(const Prediction& predicted, const Device& on) {
  Json rows;
  for (const Kind kind : every<Kind>) {
    const KindBytes& booked = on.ledger.of(kind);
    const auto& [resident, peak, formula] = predicted.bytes[on.place][kind];
    if (on.place != Place::device && booked.reserved == 0 && peak == 0) continue;
    rows[name_of(kind)] = {{"predicted", peak},           {"predicted_resident", resident},
                           {"resident", booked.resident}, {"reserved", booked.reserved},
                           {"peak", booked.peak},         {"formula", formula}};
  }
  return rows;
}

/// A row of what passes, with its times in a step: time_of(step).
Json traffic_json(std::int64_t predicted, const Json& counted,
                  const std::vector<OverlapTimes>& steps, auto time_of) {
  const auto median = [&](auto figure) {
    std::vector<std::chrono::microseconds> times;
    for (const OverlapTimes& step : steps) {
      times.push_back(std::chrono::floor<std::chrono::microseconds>(time_of(step).*figure));
    }
    return times.empty() ? Json() : Json(median_ms(times));
  };
  return {{"predicted", predicted},
          {"counted", counted},
          {"exposed_ms", median(&OverlapTime::exposed)},
          {"hidden_ms", median(&OverlapTime::hidden)}};
}

Json traffic_json(const Prediction& predicted, const Prediction::Traffic& traffic,
                  const std::vector<OverlapTimes>& times, const Communicator& comm) {
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
    phases[name_of(phase)] =
        traffic_json(traffic.sent[phase], if_counted(in_phase), times,
                     [=](const OverlapTimes& step) { return step.messages[phase]; });
    phases[name_of(phase)]["formula"] = predicted.formula(phase);
  }
  return {{"phases", phases},
          {"collectives", collectives},
          {"padding", {{"predicted", traffic.padding}, {"counted", if_counted(sent.padding)}}},
          {"scalars", {{"predicted", traffic.scalars}, {"counted", sent.scalars}}}};
}

Json of_this_rank(const Run& run, const Prediction& predicted, Prediction::Steps steps,
                  const std::vector<OverlapTimes>& times, const Json& outcome,
                  const Communicator& comm) {
  const Prediction::Traffic traffic = predicted.traffic(steps);
  Json memory = bytes_json(predicted, run.device);
  std::int64_t resident = 0;
  for (const Json& kind : memory) resident += kind["resident"].get<std::int64_t>();
  memory["total"] = {{"resident", resident},
                     {"reserved", run.device.ledger.reserved()},
                     {"peak", run.device.ledger.peak_of_total()}};
  Json mine = {{"memory", memory}, {"traffic", traffic_json(predicted, traffic, times, comm)}};
  mine.update(outcome);
  for (const Place place : {Place::host, Place::disk}) {
    if (!run.card.uses(place)) continue;
    mine[memory_names[place]] = bytes_json(predicted, run.device.at(place));
  }
  for (const Place place : far_places) {
    if (!run.card.offloads() || !run.card.uses(place)) continue;
    for (const Direction way : every<Direction>) {
      mine[bus_names[place]][copy_names[place][way]] =
          traffic_json(traffic.copied[place][way], run.device.at(place).bus.bytes[way].load(),
                       times, [=](const OverlapTimes& step) { return step.transfers[place][way]; });
    }
  }
  return mine;
}
}  // namespace

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
  const Json figures = all.flatten();
  for (const auto& [name, figure] : figures.items()) {
    if (!figure.is_number()) continue;
    const Pointer place(name);
    std::int64_t sum = 0;
    for (const Json& rank : ranks) {
      all[place] = std::max(all[place], rank[place]);
      sum += rank[place].get<std::int64_t>();
    }
    if (name == "/traffic/padding/counted") all[place] = sum;
  }
  return all;
}

void check_counts(const Json& summary) {
  const auto check = [](const std::string& what, const Json& predicted, const Json& counted) {
    if (!counted.is_null() && predicted != counted)
      throw_error(ExitCode::numerics, "{}: {} counted, {} predicted", what, counted.dump(),
                  predicted.dump());
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
  check_rows("/disk_memory", "bytes of", " on the disk");
  check_rows("/bus", "bytes copied");
  check_rows("/disk", "bytes");
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

void print_row(const auto&... cells) {
  const std::string row = fmt::format("{:<22}{:>16}{:>16}{:>13}{:>13}", cells...);
  fmt::print("{}\n", row.substr(0, row.find_last_not_of(' ') + 1));
}

void print_held(const std::string& name, const Json& row) {
  fmt::print("  {:<20}{:>16}{:>16} {:>12}\n", name, cell(row, "predicted"), cell(row, "peak"),
             cell(row, "resident"));
}

void print_traffic(const std::string& name, const Json& row) {
  const std::string counted = row["counted"].is_null() ? "by formula" : cell(row, "counted");
  print_row("  " + name, cell(row, "predicted"), counted, cell(row, "exposed_ms"),
            cell(row, "hidden_ms"));
}
}  // namespace

void print_table(const Json& summary, bool alone) {
  const bool host = summary.contains("host_memory");
  fmt::print("\n");
  fmt::print("{:<22}{:>16}{:>16}{:>13}\n", host ? "bytes on a device" : "bytes of a rank",
             "predicted", "peak", "resident");
  for (const auto& [name, row] : summary["memory"].items()) {
    if (name == name_of(Kind::workspace) && row["reserved"] == 0) continue;  // a GPU's alone
    print_held(name == "total" ? "all together" : name, row);
  }
  for (const Place place : {Place::host, Place::disk}) {
    if (!summary.contains(memory_names[place])) continue;
    fmt::print("{}\n", place_words[place]);
    for (const auto& [name, row] : summary[memory_names[place]].items()) print_held(name, row);
  }
  const auto heading = [](const char* what) {
    print_row(what, "predicted", "counted", "ms exposed", "ms hidden");
  };
  if (!alone) {
    heading("elements sent");
    const Json& traffic = summary["traffic"];
    for (const auto& [phase, row] : traffic["phases"].items()) print_traffic(phase, row);
    print_traffic("padding, all ranks", traffic["padding"]);
    print_traffic("scalars", traffic["scalars"]);
  }
  if (!host) return;
  heading("bytes copied");
  for (const Place place : far_places) {
    if (!summary.contains(bus_names[place])) continue;
    for (const Direction way : every<Direction>) {
      print_traffic(copied_words[place][way], summary[bus_names[place]][copy_names[place][way]]);
    }
  }
}
}  // namespace zero
