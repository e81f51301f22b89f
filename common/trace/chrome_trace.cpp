// SPDX-License-Identifier: MIT
#include "trace/chrome_trace.hpp"

#include <map>
#include <nlohmann/json.hpp>

namespace zero {
namespace {
using Json = nlohmann::ordered_json;
using std::chrono::nanoseconds;

constexpr int rounds = 8;  // of readings of clocks
constexpr auto shortest_wait = std::chrono::microseconds(1);

double microseconds(nanoseconds time) { return static_cast<double>(time.count()) / 1000; }

std::vector<nanoseconds> gather_times(Communicator& comm, nanoseconds mine) {
  const auto number = static_cast<std::uint64_t>(mine.count());
  std::vector<nanoseconds> times;
  for (const std::uint64_t of_rank : comm.gather({&number, 1})) {
    times.emplace_back(static_cast<std::int64_t>(of_rank));
  }
  return times;
}

/// As it lies on its track, with its name, its category and its arguments.
struct Bar {
  int track;
  Clock::time_point begin, end;
  Json about;
};

Bar bar_of(const Slice& slice, int track) {
  constexpr const char* sorts[] = {"compute", "copy", "bus", "collective", "wait"};
  const Work& work = slice.work;
  const bool waits = work.sort == Work::Sort::wait, phase = track == 0 && !waits;
  Json args = {{"step", slice.step}, {"phase", name_of(slice.phase)}};
  if (work.layer >= 0) args["layer"] = work.layer;
  if (!waits && !phase) args["elements"] = work.elements;
  if (work.bytes > 0) args["bytes"] = work.bytes;
  return {track,
          slice.begin.time(),
          slice.end.time(),
          {{"name", (waits ? "waits for " : "") + words(work)},
           {"cat", phase ? "phase" : sorts[static_cast<int>(work.sort)]},
           {"args", args}}};
}

/// By track, in the order of their begins, what lies in another behind it; on the host's also the
/// steps around their phases.
std::vector<Bar> bars_of(const Slices& tracks) {
  std::vector<Bar> bars;
  std::map<int, Bar> steps;
  for (int track = 0; track < std::ssize(tracks); ++track) {
    const std::vector<Slice>& slices = tracks[track].second;
    for (auto slice = slices.rbegin(); slice != slices.rend(); ++slice) {  // the inner ended first
      if (slice->step > Recorder::traced_steps) continue;
      const Bar& bar = bars.emplace_back(bar_of(*slice, track));
      if (slice->work.sort == Work::Sort::wait) {
        if (bar.end - bar.begin < shortest_wait) bars.pop_back();
      } else if (track == 0) {
        const Json about = {{"name", "step " + std::to_string(slice->step)},
                            {"cat", "step"},
                            {"args", {{"step", slice->step}}}};
        Bar& step = steps.try_emplace(slice->step, Bar{0, bar.begin, bar.end, about}).first->second;
        step.begin = std::min(step.begin, bar.begin), step.end = std::max(step.end, bar.end);
      }
    }
  }
  for (auto& [number, step] : steps) bars.insert(bars.begin(), std::move(step));
  std::ranges::stable_sort(bars, {}, [](const Bar& bar) {
    return std::tuple(bar.track, bar.begin, -bar.end.time_since_epoch());
  });
  return bars;
}
}  // namespace

ClockOffset clock_offset(Communicator& comm, const std::function<Clock::time_point()>& now) {
  nanoseconds before{};
  ClockOffset best{{}, nanoseconds::max()};
  // Rank 0 reads its clock between two exchanges: so after this rank read its own for the first of
  // them, and before it reads it again after the second, which brings rank 0's reading.
  for (int round = 0; round <= rounds; ++round) {
    const nanoseconds reading = now().time_since_epoch();
    const nanoseconds of_rank_0 = gather_times(comm, reading).front();
    const nanoseconds after = now().time_since_epoch(), error = (after - before) / 2;
    if (round > 0 && error < best.error) best = {of_rank_0 - (before + error), error};
    before = reading;
  }
  return comm.rank == 0 ? ClockOffset{} : best;
}

std::string chrome_trace(const Slices& slices, const std::vector<Booked>& booked,
                         const char* chapter, Dtype dtype, ClockOffset clock, Communicator& comm) {
  const std::vector<Bar> bars = bars_of(slices);
  auto first = booked.empty() ? Clock::time_point::max() : booked.front().time;
  for (const Bar& bar : bars) first = std::min(first, bar.begin);
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
  for (int track = 0; track < std::ssize(slices); ++track) {
    write_name("thread_name", track, slices[track].first);
  }
  for (const Bar& bar : bars) {
    Json event = {{"ts", time(bar.begin)}, {"dur", microseconds(bar.end - bar.begin)}};
    event.update(bar.about);
    write("X", bar.track, event);
  }
  for (const Booked& now : booked) {
    Json bytes;
    for (int k = 0; k < kind_count; ++k) bytes[name_of(static_cast<Kind>(k))] = now.bytes[k];
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
