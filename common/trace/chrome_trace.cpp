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

/// As it lies on its track.
struct Bar {
  Clock::time_point begin, end;
  std::string name, category;
  Json args;
};

Bar bar_of(const Slice& slice, bool on_host) {
  constexpr const char* sorts[] = {"compute", "copy", "bus", "collective", "wait"};
  const Work& work = slice.work;
  const bool waits = work.sort == Work::Sort::wait;
  Json args = {{"step", slice.step}, {"phase", name_of(slice.phase)}};
  if (work.layer >= 0) args["layer"] = work.layer;
  if (!waits && !on_host) args["elements"] = work.elements;
  if (work.bytes > 0) args["bytes"] = work.bytes;
  return {slice.begin.time(), slice.end.time(), (waits ? "waits for " : "") + words(work),
          on_host && !waits ? "phase" : sorts[static_cast<int>(work.sort)], std::move(args)};
}

/// In the order of their begins, what lies in another behind it; on the host's track also the steps
/// around their phases.
std::vector<Bar> bars_of(const std::vector<Slice>& slices, bool on_host) {
  std::vector<Bar> bars;
  std::map<int, Bar> steps;
  for (auto slice = slices.rbegin(); slice != slices.rend(); ++slice) {  // the inner ended first
    Bar bar = bar_of(*slice, on_host);
    const bool waits = slice->work.sort == Work::Sort::wait;
    if (waits && bar.end - bar.begin < shortest_wait) continue;
    if (on_host && !waits) {
      Bar& step = steps.try_emplace(slice->step, bar).first->second;
      step = {std::min(step.begin, bar.begin),
              std::max(step.end, bar.end),
              "step " + std::to_string(slice->step),
              "step",
              {{"step", slice->step}}};
    }
    bars.push_back(std::move(bar));
  }
  for (auto& [number, step] : steps) bars.insert(bars.begin(), std::move(step));
  std::ranges::stable_sort(bars, [](const Bar& a, const Bar& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
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

void ChromeTrace::add(Slices taken) {
  slices_.resize(taken.size());
  for (std::size_t tid = 0; tid < taken.size(); ++tid) {
    slices_[tid].first = taken[tid].first;
    for (Slice& slice : taken[tid].second) {
      if (slice.step > Recorder::traced_steps) continue;
      slices_[tid].second.push_back(std::move(slice));
    }
  }
}

std::string ChromeTrace::text(const std::vector<Booked>& booked, const char* chapter, Dtype dtype,
                              ClockOffset clock, Communicator& comm) const {
  std::vector<std::vector<Bar>> tracks;
  auto first = Clock::time_point::max();
  for (const auto& [name, slices] : slices_) {
    tracks.push_back(bars_of(slices, tracks.empty()));
    if (!tracks.back().empty()) first = std::min(first, tracks.back().front().begin);
  }
  if (!booked.empty()) first = std::min(first, booked.front().time);
  const nanoseconds zero =
      std::ranges::min(gather_times(comm, first.time_since_epoch() + clock.offset)) - clock.offset;

  std::string mine;
  const auto write = [&](const Json& event) { mine += event.dump() + ",\n"; };
  const auto time = [&](Clock::time_point t) { return microseconds(t.time_since_epoch() - zero); };
  const auto write_name = [&](const char* of, int tid, const std::string& name) {
    write(
        {{"ph", "M"}, {"pid", comm.rank}, {"tid", tid}, {"name", of}, {"args", {{"name", name}}}});
  };
  write_name("process_name", 0, "rank " + std::to_string(comm.rank));
  for (int tid = 0; tid < std::ssize(tracks); ++tid) {
    write_name("thread_name", tid, slices_[tid].first);
    for (const Bar& bar : tracks[tid]) {
      write({{"ph", "X"},
             {"pid", comm.rank},
             {"tid", tid},
             {"ts", time(bar.begin)},
             {"dur", microseconds(bar.end - bar.begin)},
             {"name", bar.name},
             {"cat", bar.category},
             {"args", bar.args}});
    }
  }
  for (const Booked& now : booked) {
    Json bytes;
    for (int k = 0; k < kind_count; ++k) bytes[name_of(static_cast<Kind>(k))] = now.bytes[k];
    write({{"ph", "C"},
           {"pid", comm.rank},
           {"tid", 0},
           {"ts", time(now.time)},
           {"name", "bytes in use"},
           {"args", bytes}});
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
