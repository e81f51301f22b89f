// SPDX-License-Identifier: MIT
#include <cmath>
#include <nlohmann/json.hpp>

#include "memory/throw_error.hpp"
#include "report/report.hpp"

namespace zero {
namespace {
constexpr By<Place, const char*> memory_names{"memory", "host_memory", "disk_memory"},
    bus_names{"bus", "", "disk"};  // both: keys of the summary

/// One rank's figures: only 8-byte integers >= 0, as over_ranks() takes them as std::uint64_t.
struct Figures {
  By<Place, By<Kind, KindBytes>> bytes{};
  KindBytes total{};  // of all kinds on the device
  Sent sent{};
  By<Phase, std::int64_t> sent_in{};  // elements
  By<Place, By<Direction, std::int64_t>> copied{};  // bytes
  OverlapTimes times{};  // of a step: each is the median over steps
  std::chrono::microseconds step{};  // the median time of a step
};

std::chrono::microseconds median(std::vector<std::chrono::microseconds> times) {  // see median_ms()
  const auto first = times.begin() + (times.size() > 3 ? 3 : 0);
  const auto middle = first + (times.end() - first) / 2;
  std::nth_element(first, middle, times.end());
  return *middle;
}

OverlapTimes medians(const std::vector<OverlapTimes>& steps) {  // each time's median; 0 if no steps
  std::array<std::chrono::nanoseconds, sizeof(OverlapTimes) / 8> all{};
  for (std::size_t i = 0; i < all.size() && !steps.empty(); ++i) {
    std::vector<std::chrono::microseconds> times;
    for (const OverlapTimes& step : steps) {
      const auto time = std::bit_cast<decltype(all)>(step)[i];
      times.push_back(std::chrono::floor<std::chrono::microseconds>(time));
    }
    all[i] = median(std::move(times));
  }
  return std::bit_cast<OverlapTimes>(all);
}

Figures figures_of(Device& device, const Sent& sent, const std::vector<OverlapTimes>& times) {
  Figures mine{.sent = sent, .sent_in = sent.in_phases(), .times = medians(times)};
  for (const Place place : every<Place>) {
    const Device& there = device.at(place);
    for (const Kind kind : every<Kind>) mine.bytes[place][kind] = there.ledger().of(kind);
    for (const Direction way : every<Direction>) mine.copied[place][way] = there.bus.bytes[way];
  }
  for (const KindBytes& kind : mine.bytes[Place::device]) mine.total.resident += kind.resident;
  mine.total.reserved = device.ledger().reserved();
  mine.total.peak = device.ledger().peak_of_total();
  return mine;
}

/// Returns the largest of each number over the ranks; for padding the sum. All ranks must call it.
Figures over_ranks(const Figures& mine, Communicator& comm) {
  auto largest = std::bit_cast<std::array<std::uint64_t, sizeof(Figures) / 8>>(mine);
  const std::vector<std::uint64_t> all = comm.gather(largest);
  for (std::size_t i = 0; i < all.size(); ++i) {
    largest[i % largest.size()] = std::max(largest[i % largest.size()], all[i]);
  }
  auto figures = std::bit_cast<Figures>(largest);
  figures.sent.padding = 0;
  const auto padding = static_cast<std::uint64_t>(mine.sent.padding);
  for (const std::uint64_t of_rank : comm.gather({&padding, 1})) figures.sent.padding += of_rank;
  return figures;
}

/// Returns bytes by kind. Host and disk have only the kinds that they hold, or should hold.
Json bytes_json(const Prediction& predicted, const Figures& figures, Place place) {
  Json rows;
  for (const Kind kind : every<Kind>) {
    const KindBytes& booked = figures.bytes[place][kind];
    const auto& [resident, peak, formula] = predicted.bytes[place][kind];
    if (place != Place::device && booked.reserved == 0 && peak == 0) continue;
    rows[name_of(kind)] = {{"predicted", peak},           {"predicted_resident", resident},
                           {"resident", booked.resident}, {"reserved", booked.reserved},
                           {"peak", booked.peak},         {"formula", formula}};
  }
  return rows;
}
}  // namespace

double median_ms(std::vector<std::chrono::microseconds> times) {
  return milliseconds(median(std::move(times)));
}

Json summarise(const Run& run, const Prediction& predicted, Prediction::Steps steps,
               const std::vector<OverlapTimes>& times, const Json& outcome, Communicator& comm) {
  Figures mine = figures_of(run.device, comm.sent(), times);
  mine.step = std::chrono::microseconds(std::llround(1000 * outcome["median_ms"].get<double>()));
  const Figures all = over_ranks(mine, comm);
  const Prediction::Traffic traffic = predicted.traffic(steps);
  const auto row = [&](std::int64_t expected, const Json& counted,
                       const OverlapTime& time) -> Json {
    return {{"predicted", expected},
            {"counted", counted},
            {"exposed_ms", times.empty() ? Json() : Json(milliseconds(time.exposed))},
            {"hidden_ms", times.empty() ? Json() : Json(milliseconds(time.hidden))}};
  };
  const auto if_counted = [&](std::int64_t sent) { return comm.counts() ? Json(sent) : Json(); };
  Json phases, collectives, memory = bytes_json(predicted, all, Place::device);
  const KindBytes& total = all.total;
  memory["total"] = {
      {"resident", total.resident}, {"reserved", total.reserved}, {"peak", total.peak}};
  for (const Phase phase : step_phases) {
    for (const Collective collective : {Collective::reduce_scatter, Collective::all_gather}) {
      const std::int64_t sent = all.sent.elements[collective][phase];
      collectives[name_of(collective)][name_of(phase)] = if_counted(sent);
    }
    Json& of_phase = phases[name_of(phase)];
    of_phase = row(traffic.sent[phase], if_counted(all.sent_in[phase]), all.times.messages[phase]);
    of_phase["formula"] = predicted.formula(phase);
  }
  const Json padding = {{"predicted", traffic.padding}, {"counted", if_counted(all.sent.padding)}};
  const Json scalars = {{"predicted", traffic.scalars}, {"counted", all.sent.scalars}};  // by MPI
  Json summary = {{"memory", memory}, {"traffic", {{"phases", phases}}}};
  summary["traffic"].update(
      {{"collectives", collectives}, {"padding", padding}, {"scalars", scalars}});
  summary.update(outcome);
  summary["median_ms"] = milliseconds(all.step);
  for (const Place place : {Place::host, Place::disk}) {
    if (run.card.uses(place)) summary[memory_names[place]] = bytes_json(predicted, all, place);
  }
  for (const Place place : bus_places) {
    if (!run.card.offloads() || !run.card.uses(place)) continue;
    for (const Direction way : every<Direction>) {
      summary[bus_names[place]][copy_names[place][way]] =
          row(traffic.copied[place][way], all.copied[place][way], all.times.transfers[place][way]);
    }
  }
  return summary;
}

void check_counts(const Json& summary) {
  const auto check = [](const std::string& what, const Json& predicted, const Json& counted) {
    if (!counted.is_null() && predicted != counted)
      throw_error(ExitCode::numerics, "{}: {} counted, {} predicted", what, counted.dump(),
                  predicted.dump());
  };
  const auto check_rows = [&](const char* rows, const char* what, const char* where = "") {
    const Json found = summary.value(Json::json_pointer(rows), Json::object());
    for (const auto& [name, row] : found.items()) {
      for (const auto& [predicted, counted, suffix] :
           {std::array{"predicted_resident", "resident", " held"},
            {"predicted", "peak", " at the peak"},
            {"predicted", "reserved", " reserved"},
            {"predicted", "counted", ""}}) {
        if (!row.contains(predicted) || !row.contains(counted)) continue;
        check(fmt::format("{} {}{}{}", what, name, where, suffix), row[predicted], row[counted]);
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
/// Returns the row's figure as text; empty if the row has none.
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
  fmt::print("\n{:<22}{:>16}{:>16}{:>13}\n", host ? "bytes on a device" : "bytes of a rank",
             "predicted", "peak", "resident");
  for (const auto& [name, row] : summary["memory"].items()) {
    if (name == name_of(Kind::workspace) && row["reserved"] == 0) continue;  // only a GPU has it
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
  for (const Place place : bus_places) {
    if (!summary.contains(bus_names[place])) continue;
    for (const Direction way : every<Direction>) {
      print_traffic(copied_words[place][way], summary[bus_names[place]][copy_names[place][way]]);
    }
  }
}
}  // namespace zero
