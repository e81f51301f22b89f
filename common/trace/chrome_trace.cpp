// SPDX-License-Identifier: MIT
#include "trace/chrome_trace.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "memory/throw_error.hpp"

namespace zero {
namespace {
using nlohmann::ordered_json;

/// Returns each call as "FOLDER/trainer.hpp:52", the trainer's call first.
ordered_json places(const std::vector<std::source_location>& sites) {
  ordered_json all = ordered_json::array();
  for (auto site = sites.rbegin(); site != sites.rend(); ++site) {
    const std::filesystem::path file = site->file_name();
    all.push_back(fmt::format("{}/{}:{}", file.parent_path().filename().string(),
                              file.filename().string(), site->line()));
  }
  return all;
}

/// Appends a view that has a name. Views of other memory, as of activations, are left out.
void add_view(ordered_json& views, const ConstView& view,
              const std::vector<float>* values = nullptr) {
  if (!view.name) return;
  ordered_json told = {
      {"of", view.name}, {"layer", view.layer}, {"start", view.start}, {"size", view.size}};
  if (view.slot >= 0) told["slot"] = view.slot, told["place"] = name_of(view.place());
  if (values) told["values"] = *values;
  views.push_back(told);
}

template <class Figures> ordered_json by_name(const Figures& figures) {
  ordered_json told;
  for (const auto of : every<typename Figures::Of>) told[name_of(of)] = figures[of];
  return told;
}

ordered_json arguments(const Slice& slice, const std::vector<HostAction>& actions,
                       std::uint64_t earlier_actions) {
  const Work& work = slice.work;
  ordered_json args = {{"step", slice.step}, {"phase", name_of(slice.phase)}};
  if (work.layer >= 0) args["layer"] = work.layer;
  if (work.bytes > 0) args["bytes"] = work.bytes;
  if (work.type == Work::Type::wait || slice.track == 0) return args;
  args["elements"] = work.elements;
  const HostAction& action = actions.at(slice.order);
  args["during"] = name_of(action.during);
  args["order"] = earlier_actions + slice.order;
  args["at"] = places(action.sites);
  args["in_use"] = by_name(action.bytes);
  if (work.type == Work::Type::message) args["sent"] = by_name(slice.sent);
  args["reads"] = args["writes"] = ordered_json::array();
  for (const ConstView& view : work.reads) add_view(args["reads"], view);
  for (std::size_t i = 0; i < work.writes.size(); ++i) {
    const bool kept = i < slice.values.size();
    add_view(args["writes"], work.writes[i], kept ? &slice.values[i] : nullptr);
    if (kept && !work.writes[i].name) args["samples"].push_back(slice.values[i]);
  }
  return args;
}

/// Returns the last line of the file: who holds what, and how layers are cut.
std::string last_line(const Card& card, const Layout& layout, Device& device) {
  ordered_json layers = ordered_json::array(), state_tensors = ordered_json::array();
  for (int l = 0; l < layout.layers(); ++l) {
    layers.push_back({{"parameters", layout.used_size(l)},
                      {"size", layout.layer_size(l)},
                      {"shard", layout.shard_size(l)}});
  }
  for (const Place place : every<Place>) {
    for (const StateTensor* tensor : device.at(place).state_tensors()) {
      const ConstView all = tensor->view();
      state_tensors.push_back({{"of", name_of(tensor->state)},
                               {"kind", name_of(kind_of(tensor->state))},
                               {"elements", all.size},
                               {"dtype", name_of(all.dtype)},
                               {"bytes", all.bytes()},
                               {"place", name_of(place)}});
    }
  }
  const ordered_json about = {{"chapter", card.name},
                              {"ranks", layout.ranks()},
                              {"layers", layers},
                              {"held", state_tensors}};
  return "],\"otherData\":" + about.dump() + "}";
}

/// Returns the earliest moment of all ranks on this host, which share a clock. mine: this rank's.
Clock::time_point first_here(Clock::time_point mine, Communicator& comm) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const auto name = static_cast<std::uint64_t>(std::hash<std::string>()(host));
  const std::array own{name, static_cast<std::uint64_t>(mine.time_since_epoch().count())};
  const std::vector<std::uint64_t> all = comm.gather(own);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (all[i] == name) mine = std::min(mine, Clock::time_point(Clock::duration(all[i + 1])));
  }
  return mine;
}
}  // namespace

double number_after(const char* name, const std::string& line, double none) {
  double number = none;
  const std::size_t at = line.find(name);
  if (at != line.npos) {
    std::from_chars(line.data() + at + std::strlen(name), line.data() + line.size(), number);
  }
  return number;
}

EarlierTrace read_trace(const std::string& path, std::int64_t steps, const Card& card,
                        const Layout& layout, Device& device) {
  EarlierTrace found;
  std::ifstream file(path);
  if (!file) throw_error(ExitCode::usage, "--trace {}: {}", path, std::strerror(errno));
  std::string line;
  std::getline(file, line);
  for (bool kept = true; std::getline(file, line) && !line.starts_with(']');) {
    const double begin = number_after(R"("ts":)", line, -1);
    // A track's name has no time and is kept. A counter has no step and is kept if its event is.
    const double never = static_cast<double>(steps) + 1;
    kept = number_after(R"("step":)", line, begin < 0 || kept ? 0 : never) <= steps;
    if (!kept || line.empty()) continue;
    found.end = std::max(found.end, 1 + begin + number_after(R"("dur":)", line, 0));
    found.actions = std::max(found.actions, 1 + number_after(R"("order":)", line, -1));
    found.events += fmt::format("\n{}{}", line, line.ends_with(',') ? "" : ",");
  }
  const bool counts = found.end < 0x1p53 && found.actions < 0x1p53;
  if (!counts || line != last_line(card, layout, device))
    throw_error(ExitCode::usage,
                "--trace {}: it is no trace of this model by {} with N = {}: name another file",
                path, card.name, layout.ranks());
  return found;
}

std::string chrome_trace(Recorder& recorder, std::span<const Slice> slices,
                         const EarlierTrace& earlier, const Card& card, const Layout& layout,
                         Device& device, Communicator& comm) {
  constexpr const char* types[] = {"compute", "copy", "bus", "collective", "wait"};
  const std::vector<HostAction>& actions = recorder.actions();
  auto first = actions.empty() ? Clock::time_point::max() : actions.front().time;
  for (const Slice& slice : slices) first = std::min(first, slice.begin.time());
  const std::array own{std::uint64_t(earlier.actions), std::uint64_t(earlier.end)};
  const std::vector<std::uint64_t> before = comm.gather(own);  // the first two are rank 0's
  first = first_here(first, comm) - std::chrono::microseconds(before[1]);
  const auto since = [](auto begin, auto end) {
    return std::chrono::duration<double, std::micro>(end - begin).count();
  };
  std::string mine;
  const auto write = [&](const char* type, int track, const ordered_json& more) {
    ordered_json event = {{"ph", type}, {"pid", comm.rank}, {"tid", track}};
    event.update(more);
    mine += event.dump() + ",\n";
  };
  const auto write_name = [&](const char* of, int track, const std::string& name) {
    write("M", track, {{"name", of}, {"args", {{"name", name}}}});
  };
  write_name("process_name", 0, fmt::format("rank {}", comm.rank));
  const std::vector<std::string> tracks = recorder.tracks();
  for (int track = 0; track < std::ssize(tracks); ++track) {
    write_name("thread_name", track, tracks[track]);
  }
  for (const Slice& slice : slices) {
    const bool waits = slice.work.type == Work::Type::wait, phase = slice.track == 0 && !waits;
    write("X", slice.track,
          {{"ts", since(first, slice.begin.time())},
           {"dur", since(slice.begin.time(), slice.end.time())},
           {"name", (waits ? "waits for " : "") + describe(slice.work)},
           {"cat", phase ? "phase" : types[static_cast<int>(slice.work.type)]},
           {"args", arguments(slice, actions, before[0])}});
  }
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const HostAction& action = actions[i];
    if (action.change == 0) continue;
    const double time = since(first, action.time);
    ordered_json args = {{"step", action.step},
                         {"during", name_of(action.during)},
                         {"order", before[0] + i},
                         {"at", places(action.sites)},
                         {"kind", name_of(action.kind)},
                         {"bytes", action.change},
                         {"in_use", by_name(action.bytes)},
                         {"lent", ordered_json::array()}};
    add_view(args["lent"], action.view);
    write("i", 0,
          {{"ts", time},
           {"s", "t"},
           {"cat", "memory"},
           {"name", action.change > 0 ? "borrow" : "give back"},
           {"args", args}});
    write("C", 0, {{"ts", time}, {"name", "bytes in use"}, {"args", by_name(action.bytes)}});
  }
  std::string all = R"({"displayTimeUnit":"ms","traceEvents":[)" + earlier.events;
  for (const std::string& of_rank : comm.gather_texts(mine, false)) all += "\n" + of_rank;
  if (comm.rank > 0) return "";
  all.resize(all.size() - 2);  // without the last ",\n"
  return all + "\n" + last_line(card, layout, device) + "\n";
}
}  // namespace zero
