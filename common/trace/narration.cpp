// SPDX-License-Identifier: MIT
#include "trace/narration.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "memory/error.hpp"

namespace zero {
namespace {
/// What is told at a moment: a sentence, and this rank's values of a layer, which others may have.
struct Told {
  Clock::time_point time;
  std::string sentence;
  std::string values{};
  int layer = -1;
};

/// The layer's elements side by side: those of the view with their values, the others as dots.
std::string row_of(const Slice& slice, const Layout& layout) {
  const View& made = slice.work.made;
  std::string row;
  for (std::int64_t i = 0; i < layout.layer_size(made.layer); ++i) {
    const std::int64_t at = i - made.start;
    const bool elsewhere = at < 0 || at >= made.size;
    row += elsewhere         ? "      \u00b7"
           : at >= made.used ? "    pad"
                             : fmt::format(" {:>6.3f}", slice.values[at]);
  }
  return row;
}

/// What such work is for. Empty: not told by itself.
std::string meaning_of(const Work& work, int ranks) {
  static const std::map<std::string, std::string> meanings{
      {"forward", "with these parameters"},
      {"loss", "and its gradient by the outputs"},
      {"backward", "the gradient, of the rank's own samples"},
      {"reduce_scatter", ", then the mean"},
      {"all_gather", ""},
      {"divide", "by the number of micro-batches"},
      {"squared_norm", "of the gradient, for the norm of all"},
      {"sums", ", the loss and that sum"},
      {"adam", "the new weights, in fp32"},
      {"copy", "its own part into that"},
      {"down", "to the host"},
      {"up", "to the device"}};
  const auto found = meanings.find(work.what);
  if (found == meanings.end()) return "";
  if (work.sort != Work::Sort::message) return found->second;
  return fmt::format("{} to each other rank{}", work.elements / std::max(1, ranks - 1),
                     found->second);
}

/// In the order of their times.
std::vector<Told> events_of(const Slices& taken, const std::vector<Booked>& booked,
                            const Layout& layout) {
  std::vector<std::pair<Slice, bool>> asked_for;  // and whether it is the host's own
  for (const auto& [track, slices] : taken) {
    for (const Slice& slice : slices) {
      const bool told = slice.step == 1 && slice.work.sort != Work::Sort::wait;
      if (told) asked_for.emplace_back(slice, track == "host");
    }
  }
  std::ranges::stable_sort(asked_for, {}, [](const auto& of) { return of.first.begin.host; });
  std::vector<Told> events;
  Phase present = Phase::setup;  // of the host, a load is within one
  for (const auto& [slice, host] : asked_for) {
    const Work& work = slice.work;
    const Clock::time_point time = slice.begin.host;
    if (host && slice.phase != Phase::load) {
      present = slice.phase;
      events.push_back({time, work.what});
    }
    const std::string meaning = host ? "" : meaning_of(work, layout.ranks());
    if (meaning.empty()) continue;
    const std::string where = work.layer < 0 ? "" : fmt::format("layer {} ", work.layer);
    const std::string ahead =
        slice.phase == present ? "" : fmt::format(" for {}", name_of(slice.phase));
    const bool shown = work.layer >= 0 && work.what != std::string("squared_norm");
    events.push_back({time, fmt::format("  {}{}{}: {}", where, work.what, ahead, meaning),
                      shown ? row_of(slice, layout) : "", work.layer});
  }
  std::optional<Booked> before;
  for (const Booked& now : booked) {
    for (const Kind kind : {Kind::parameters, Kind::gradients, Kind::communication}) {
      const int k = static_cast<int>(kind);
      const std::int64_t change = before ? now.bytes[k] - before->bytes[k] : 0;
      if (change == 0 || now.step != 1) continue;
      const char* const does = change > 0 ? "borrow" : "give back";
      events.push_back({now.time, fmt::format("  {} {} bytes of {}: {} in use", does,
                                              std::abs(change), name_of(kind), now.bytes[k])});
    }
    before = now;
  }
  std::ranges::stable_sort(events, {}, &Told::time);
  return events;
}

/// Which work has a stream other than the one that computes.
std::string beside(const Slices& taken) {
  std::string text;
  for (const auto& [stream, slices] : taken) {
    std::set<std::string> works;
    for (const Slice& slice : slices) {
      if (slice.step == 1 && slice.work.sort != Work::Sort::wait) works.insert(slice.work.what);
    }
    if (&stream == &taken.front().first || stream == "compute" || works.empty()) continue;
    text += fmt::format("{}{} on a stream of {} own\n", fmt::join(works, ", "),
                        works.size() == 1 ? " is" : " are", works.size() == 1 ? "its" : "their");
  }
  const char* const order =
      "told in the order in which the host asks for it, which may be ahead of its use\n\n";
  return text.empty() ? "" : text + order;
}

}  // namespace

std::string holdings(const Layout& layout) {
  std::string text = "which rank owns each element\n";
  for (int l = 0; l < layout.layers(); ++l) {
    const std::int64_t part = layout.layer_size(l) / layout.ranks();
    const std::int64_t used = layout.layer_start(l + 1) - layout.layer_start(l);
    text += fmt::format("  layer {}", l);
    for (std::int64_t i = 0; i < layout.layer_size(l); ++i) {
      text += i < used ? fmt::format("{:7}", i / part) : "    pad";
    }
    text += "\n";
  }
  text += "\nheld throughout, by each rank\n";
  // In the order in which every trainer holds them; without mixed precision there is no master.
  const std::array<const char*, 3> states{"master", "momentum", "variance"};
  auto state =
      states.end() - std::ranges::count(Tensor::held, Kind::optimizer, &Tensor::Held::kind);
  for (const auto& [kind, view] : Tensor::held) {
    if (kind == Kind::data) continue;
    const bool of_adam = kind == Kind::optimizer;
    const std::string what = name_of(kind) + (of_adam ? fmt::format(", {}", *state++) : "");
    text += fmt::format("  {:<20}{:>3} of {} in {}, {} bytes{}\n", what, view.size,
                        layout.full_size(), name_of(view.dtype), view.bytes(),
                        view.device == Device::host ? ", on its host" : "");
  }
  return text;
}

std::string narration(const Slices& taken, const std::vector<Booked>& booked, const Layout& layout,
                      Communicator& comm) {
  const std::vector<Told> events = events_of(taken, booked, layout);
  nlohmann::json mine = nlohmann::json::array();
  for (const Told& event : events) mine.push_back(event.values);
  std::vector<std::vector<std::string>> rows;  // by rank
  for (const std::string& text : comm.gather_texts(mine.dump())) {
    rows.push_back(nlohmann::json::parse(text));
    expect(rows.back().size() == rows.front().size(), "all ranks have as much to tell");
  }
  std::string told = comm.rank == 0 ? beside(taken) : "";
  std::set<std::pair<int, std::vector<std::string>>> known;  // a layer's rows that stand there
  for (std::size_t i = 0; i < events.size() && comm.rank == 0; ++i) {
    told += events[i].sentence;
    std::vector<std::string> all;
    for (const auto& of_rank : rows) all.push_back(of_rank[i]);
    const bool shows = !events[i].values.empty(),
               again = shows && !known.emplace(events[i].layer, all).second;
    told += again ? " (as above)\n" : "\n";
    if (!shows || again) continue;
    if (comm.size > 1 && std::ranges::count(all, all.front()) == comm.size) {
      told += "  all    " + all.front() + "\n";
      continue;
    }
    for (int r = 0; r < comm.size; ++r) told += fmt::format("  rank {} {}\n", r, all[r]);
  }
  return told;
}
}  // namespace zero
