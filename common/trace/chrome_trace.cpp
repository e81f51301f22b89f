// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "trace/views.hpp"

namespace zero {
namespace {
using Json = nlohmann::ordered_json;
using std::chrono::nanoseconds;

constexpr int rounds = 8;  // of readings of clocks
constexpr auto shortest_wait = std::chrono::microseconds(1);
constexpr const char* step = "step";  // a slice around a step's phases

double microseconds(nanoseconds time) { return static_cast<double>(time.count()) / 1000; }

std::vector<nanoseconds> gather_times(Communicator& comm, nanoseconds mine) {
  const auto number = static_cast<std::uint64_t>(mine.count());
  std::vector<nanoseconds> times;
  for (const std::uint64_t of_rank : comm.gather({&number, 1})) {
    times.emplace_back(static_cast<std::int64_t>(of_rank));
  }
  return times;
}

/// Its name, its category and its arguments.
Json about(const Slice& slice) {
  constexpr const char* sorts[] = {"compute", "copy", "bus", "collective", "wait"};
  const Work& work = slice.work;
  Json args = {{"step", slice.step}};
  if (work.what == step) {
    return {{"name", fmt::format("step {}", slice.step)}, {"cat", step}, {"args", args}};
  }
  const bool waits = work.sort == Work::Sort::wait, phase = slice.track == 0 && !waits;
  args["phase"] = name_of(slice.phase);
  if (work.layer >= 0) args["layer"] = work.layer;
  if (!waits && !phase) args["elements"] = work.elements;
  if (work.bytes > 0) args["bytes"] = work.bytes;
  return {{"name", (waits ? "waits for " : "") + words(work)},
          {"cat", phase ? "phase" : sorts[static_cast<int>(work.sort)]},
          {"args", args}};
}

/// Those to be traced, by track and begin, outer before inner; on the host's also the steps.
std::vector<Slice> traced(std::span<const Slice> slices) {
  std::vector<Slice> all;
  std::map<int, Slice> steps;
  for (const Slice& seen : slices | std::views::reverse) {  // the inner ended first
    const bool waits = seen.work.sort == Work::Sort::wait;
    if (seen.step > Recorder::traced_steps) continue;
    Slice slice = seen;
    for (Moment* moment : {&slice.begin, &slice.end}) {  // a device is asked once for each
      *moment = {moment->time(), nullptr};
    }
    if (waits && slice.end.host - slice.begin.host < shortest_wait) continue;
    all.push_back(slice);
    if (waits || slice.track > 0) continue;
    Slice& whole = steps.try_emplace(slice.step, slice).first->second;
    whole.work.what = step;
    whole.begin.host = std::min(whole.begin.host, slice.begin.host);
  }
  for (const auto& [number, whole] : steps) all.insert(all.begin(), whole);
  std::ranges::stable_sort(all, {}, [](const Slice& slice) {
    return std::tuple(slice.track, slice.begin.host, -slice.end.host.time_since_epoch());
  });
  return all;
}
}  // namespace

ClockOffset clock_offset(Communicator& comm, const std::function<Clock::time_point()>& now) {
  nanoseconds before{};
  ClockOffset best{{}, nanoseconds::max()};
  // Rank 0 reads between two exchanges: after this rank did for the first, and before `after`.
  for (int round = 0; round <= rounds; ++round) {
    const nanoseconds reading = now().time_since_epoch();
    const nanoseconds of_rank_0 = gather_times(comm, reading).front();
    const nanoseconds after = now().time_since_epoch(), error = (after - before) / 2;
    if (round > 0 && error < best.error) best = {of_rank_0 - (before + error), error};
    before = reading;
  }
  return comm.rank == 0 ? ClockOffset{} : best;
}

std::string chrome_trace(const Recording& seen, const char* chapter, Dtype dtype, ClockOffset clock,
                         Communicator& comm) {
  const std::vector<Slice> slices = traced(seen.slices);
  auto first = seen.booked.empty() ? Clock::time_point::max() : seen.booked.front().time;
  for (const Slice& slice : slices) first = std::min(first, slice.begin.host);
  const nanoseconds zero =
      std::ranges::min(gather_times(comm, first.time_since_epoch() + clock.offset)) - clock.offset;

  std::string mine;
  const auto write = [&](const char* sort, int track, const Json& more) {
    Json event = {{"ph", sort}, {"pid", comm.rank}, {"tid", track}};
    event.update(more);
    mine += event.dump() + ",\n";
  };
  const auto time = [&](Clock::time_point t) { return microseconds(t.time_since_epoch() - zero); };
  const auto write_name = [&](const char* of, int track, const std::string& name) {
    write("M", track, {{"name", of}, {"args", {{"name", name}}}});
  };
  write_name("process_name", 0, "rank " + std::to_string(comm.rank));
  for (int track = 0; track < std::ssize(seen.tracks); ++track) {
    write_name("thread_name", track, seen.tracks[track]);
  }
  for (const Slice& slice : slices) {
    Json event = {{"ts", time(slice.begin.host)},
                  {"dur", microseconds(slice.end.host - slice.begin.host)}};
    event.update(about(slice));
    write("X", slice.track, event);
  }
  for (const Booked& now : seen.booked) {
    Json bytes;
    for (const Kind kind : every<Kind>) bytes[name_of(kind)] = now.bytes[kind];
    write("C", 0, {{"ts", time(now.time)}, {"name", "bytes in use"}, {"args", bytes}});
  }

  std::string all = R"({"displayTimeUnit":"ms","traceEvents":[)";
  for (const std::string& of_rank : comm.gather_texts(mine)) all += "\n" + of_rank;
  all.resize(all.size() - 2);  // the last comma
  Json errors = Json::array();
  for (const nanoseconds error : gather_times(comm, clock.error))
    errors.push_back(microseconds(error));
  const Json about = {{"chapter", chapter},
                      {"ranks", comm.size},
                      {"dtype", name_of(dtype)},
                      {"clock_error_us", errors}};
  return comm.rank > 0 ? "" : all + "\n],\"otherData\":" + about.dump() + "}\n";
}
}  // namespace zero
