// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "trace/views.hpp"

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
      {"to_host", "to the host"},
      {"to_device", "to the device"}};
  const auto found = meanings.find(work.what);
  if (found == meanings.end()) return "";
  if (work.sort != Work::Sort::message) return found->second;
  return fmt::format("{} to each other rank{}", work.elements / std::max(1, ranks - 1),
                     found->second);
}

/// In the order of their times. seen: what the step began, in that order.
std::vector<Told> events_of(const Recording& seen, const Layout& layout) {
  std::vector<Told> events;
  Phase present = Phase::setup;  // of the host, a load is within one
  for (const Slice& slice : seen.slices) {
    const Work& work = slice.work;
    const bool host = slice.track == 0;
    if (host && slice.phase != Phase::load) {
      present = slice.phase;
      events.push_back({slice.begin.host, work.what});
    }
    const std::string meaning = host ? "" : meaning_of(work, layout.ranks());
    if (meaning.empty()) continue;
    const std::string where = work.layer < 0 ? "" : fmt::format("layer {} ", work.layer);
    const std::string ahead =
        slice.phase == present ? "" : fmt::format(" for {}", name_of(slice.phase));
    const bool shown = work.layer >= 0 && work.what != std::string("squared_norm");
    events.push_back({slice.begin.host,
                      fmt::format("  {}{}{}: {}", where, work.what, ahead, meaning),
                      shown ? row_of(slice, layout) : "", work.layer});
  }
  for (std::size_t i = 1; i < seen.booked.size(); ++i) {
    const Booked& now = seen.booked[i];
    for (const Kind kind : {Kind::parameters, Kind::gradients, Kind::communication}) {
      const std::int64_t in_use = now.bytes[kind];
      const std::int64_t change = in_use - seen.booked[i - 1].bytes[kind];
      if (change == 0 || now.step != 1) continue;
      events.push_back({now.time, fmt::format("  {} {} bytes of {}: {} in use",
                                              change > 0 ? "borrow" : "give back", std::abs(change),
                                              name_of(kind), in_use)});
    }
  }
  std::ranges::stable_sort(events, {}, &Told::time);
  return events;
}

/// Which work has a stream other than the one that computes.
std::string beside(const Recording& seen) {
  std::map<int, std::set<std::string>> works;  // by track
  for (const Slice& slice : seen.slices) works[slice.track].insert(slice.work.what);
  std::string text;
  for (const auto& [track, its] : works) {
    if (track == 0 || seen.tracks[track] == "compute") continue;
    text += fmt::format("{}{} on a stream of {} own\n", fmt::join(its, ", "),
                        its.size() == 1 ? " is" : " are", its.size() == 1 ? "its" : "their");
  }
  if (text.empty()) return "";
  return text +
         "told in the order in which the host asks for it, which may be ahead of its use\n\n";
}
}  // namespace

std::string holdings(const Layout& layout, Device& device) {
  std::string text = "which rank's part each element is in\n";
  for (int l = 0; l < layout.layers(); ++l) {
    const std::int64_t part = layout.shard_size(l), used = layout.used_size(l);
    text += fmt::format("  layer {}", l);
    for (std::int64_t i = 0; i < layout.layer_size(l); ++i) {
      text += i < used ? fmt::format("{:7}", i / part) : "    pad";
    }
    text += '\n';
  }
  text += "\nheld throughout, by each rank\n";
  for (const Device* place : {&device, &device.host()}) {
    for (const Holding* held : place->holdings) {
      const bool of_adam = kind_of(held->state) == Kind::optimizer;
      const View all = held->view();
      const std::string what = (of_adam ? "optimizer, " : "") + std::string(name_of(held->state));
      text += fmt::format("  {:<20}{:>3} of {} in {}, {} bytes{}\n", what, all.size,
                          layout.full_size(), name_of(all.dtype), all.bytes(),
                          place->place == Place::host ? ", on its host" : "");
    }
  }
  return text;
}

std::string narration(Recording seen, const Layout& layout, Communicator& comm) {
  std::erase_if(seen.slices, [](const Slice& slice) {
    return slice.step != 1 || slice.work.sort == Work::Sort::wait;
  });
  std::ranges::stable_sort(seen.slices, {}, [](const Slice& slice) { return slice.begin.host; });
  const std::vector<Told> events = events_of(seen, layout);
  nlohmann::json mine = nlohmann::json::array();
  for (const Told& event : events) mine.push_back(event.values);
  std::vector<std::vector<std::string>> rows;  // by rank
  for (const std::string& text : comm.gather_texts(mine.dump())) {
    rows.push_back(nlohmann::json::parse(text));
    expect(rows.back().size() == rows.front().size(), "all ranks have as much to tell");
  }
  if (comm.rank > 0) return "";
  std::string told = beside(seen), phase;
  std::map<std::pair<int, std::vector<std::string>>, std::string> known;  // a layer's rows: phase
  for (std::size_t i = 0; i < events.size(); ++i) {
    told += events[i].sentence;
    if (!events[i].sentence.starts_with(' ')) phase = events[i].sentence;
    std::vector<std::string> all;
    for (const auto& of_rank : rows) all.push_back(of_rank[i]);
    const bool shows = !events[i].values.empty();
    const auto [first, is_new] = known.try_emplace({events[i].layer, all}, phase);
    const std::string where = first->second == phase ? "above" : "in " + first->second;
    told += is_new || !shows ? "\n" : fmt::format(" (as {})\n", where);
    if (!shows || !is_new) continue;
    const bool equal = comm.size > 1 && std::ranges::count(all, all.front()) == comm.size;
    if (equal) told += "  all    " + all.front() + "\n";
    for (int r = 0; !equal && r < comm.size; ++r) told += fmt::format("  rank {} {}\n", r, all[r]);
  }
  return told;
}
}  // namespace zero
