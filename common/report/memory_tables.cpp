// SPDX-License-Identifier: MIT
#include "report/memory_tables.hpp"

#include "trace/memory_phases.hpp"

namespace zero {
namespace {
using Figures = std::vector<std::int64_t>;
/// A row of memory_phases() as figures: the kinds', then these.
enum Column { in_use = kind_count, change, peak, columns };
constexpr const char* unexplained = "unexplained: no longer held at the end";

/// Each rank's; all give equally many.
std::vector<Figures> gather(const Figures& mine, Communicator& comm) {
  const std::vector<std::uint64_t> all =
      comm.gather(std::vector<std::uint64_t>(mine.begin(), mine.end()));
  std::vector<Figures> ranks;
  for (auto first = all.begin(); first != all.end(); first += std::ssize(mine)) {
    ranks.emplace_back(first, first + std::ssize(mine));
  }
  return ranks;
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
      fmt::print("{:>13}", row.is_null() ? "" : cell(row.at(Json::json_pointer(figure))));
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

Json phases_json(const Run& run, const Prediction& predicted, int steps, Communicator& comm) {
  const std::vector<MemoryPhase> mine = memory_phases(run.recorder.booked(), steps);
  Figures figures;
  for (const MemoryPhase& row : mine) {
    figures.insert(figures.end(), row.bytes.begin(), row.bytes.end());
    figures.insert(figures.end(), {row.in_use, row.change, row.peak});
  }
  const std::vector<Figures> ranks = gather(figures, comm);
  const auto largest_peak = [](const Figures& of_rank) {
    std::int64_t largest = 0;
    for (std::size_t at = peak; at < of_rank.size(); at += columns) {
      largest = std::max(largest, of_rank[at]);
    }
    return largest;
  };
  const auto most = std::ranges::max_element(ranks, {}, largest_peak);
  Json rows;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const Phase phase = mine[i].phase;
    const auto of = [&](const Figures& rank, int column) { return rank[i * columns + column]; };
    const auto of_all = [&](int column) {
      std::int64_t sum = 0;
      for (const Figures& rank : ranks) sum += of(rank, column);
      return sum;
    };
    Json row = {{"step", mine[i].step},
                {"phase", phase == Phase::setup ? "start" : name_of(phase)},
                {"rank", most - ranks.begin()}};
    for (int k = 0; k < kind_count; ++k) {
      const char* const kind = name_of(static_cast<Kind>(k));
      row["bytes"][kind] = of(*most, k);
      row["predicted"][kind] = predicted.after[static_cast<int>(phase)][k];
    }
    row["in_use"] = of(*most, in_use);
    row["change"] = of(*most, change);
    row["peak"] = of(*most, peak);
    row["all_ranks"] = {{"in_use", of_all(in_use)}, {"peak", of_all(peak)}};
    rows.push_back(row);
  }
  return rows;
}

Json process_json(const Run& run, Communicator& comm) {
  const bool gpu = run.choice.device == Device::cuda;
  const Footprint end = footprint(run.choice.device);
  const auto& [before, messages, trainer] = run.footprints;
  /// Private memory that is no tensor's.
  const auto other = [&](const Footprint& at) {
    return (gpu ? at.on_gpu : at.process.anonymous) - at.reserved - at.rounding;
  };
  const std::int64_t total = !gpu ? end.process.peak : run.choice.sharing == 1 ? end.on_gpu : 0;
  std::vector<std::pair<const char*, std::int64_t>> rows = {
      {"tensors, as reserved", end.reserved},
      {"what fills their huge pages", end.rounding},
      {"before the run", other(before)},
      {"taken with data and messages", other(messages) - other(before)},
      {"taken with the trainer", other(trainer) - other(messages)},
      {"taken in the steps", other(end) - other(trainer)},
      {"mapped files: code, libraries", gpu ? 0 : end.process.files},
      {"shared with other ranks", gpu ? 0 : end.process.shared}};
  Figures figures{total};
  std::int64_t rest = total;
  for (const auto& [name, bytes] : rows) {
    figures.push_back(bytes);
    rest -= bytes;
  }
  figures.push_back(rest);
  rows.emplace_back(unexplained, rest);
  const std::vector<Figures> ranks = gather(figures, comm);
  const auto most = std::ranges::max_element(ranks, {}, [](const Figures& of) { return of[0]; });
  if ((*most)[0] == 0) return {};
  Json process = {{"rank", most - ranks.begin()}, {"gpu", gpu}, {"total", (*most)[0]}};
  for (std::size_t i = 0; i < rows.size(); ++i) process["rows"][rows[i].first] = (*most)[i + 1];
  return process;
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
