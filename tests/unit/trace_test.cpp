// SPDX-License-Identifier: MIT
// What is recorded of streams, phases and the ledger; how much of the messages' time is hidden, and
// what was in use after each phase and at most within it.
#include "tests/unit/checks.hpp"
#include "trace/views.hpp"

namespace zero::test {
namespace {
using Sort = Work::Sort;

/// A slice between two milliseconds, of a stream's but for track 0.
Slice slice(Sort sort, int begin, int end, int step = 1, Device& on = cpu(), int track = 1) {
  const auto at = [](int ms) {
    return Moment{Clock::time_point(std::chrono::milliseconds(ms)), {}};
  };
  const Work work{.sort = sort, .made = {.device = &on}};
  return {work, track, Phase::forward, step, at(begin), at(end)};
}
Slice compute(int begin, int end, int step = 1) { return slice(Sort::compute, begin, end, step); }
Slice up(int begin, int end, int step = 1) { return slice(Sort::transfer, begin, end, step); }

/// "exposed hidden", in milliseconds.
std::string words(const OverlapTime& time) {
  return fmt::format("{:g} {:g}", time.exposed.count() / 1e6, time.hidden.count() / 1e6);
}
/// Of messages, of copies down, and up.
std::string times(const std::vector<Slice>& slices) {
  const OverlapTimes of = overlap_times(slices, 1);
  return fmt::format("{}, {}, {}", words(of.messages[Phase::forward]),
                     words(of.transfers[Direction::to_host]),
                     words(of.transfers[Direction::to_device]));
}

/// "what/phase/step", or "waits for what/phase/step", in order.
std::string told(const std::vector<Slice>& slices) {
  std::string all;
  for (const Slice& slice : slices) {
    all += fmt::format("{}{}{}/{}/{}", all.empty() ? "" : ", ",
                       slice.work.sort == Sort::wait ? "waits for " : "", words(slice.work),
                       name_of(slice.phase), slice.step);
  }
  return all;
}

using Row = std::array<std::int64_t, 3>;  // in use at the end, change, peak

/// A change after which parameters and activations take so many bytes.
Booked booked(int step, Phase phase, std::int64_t parameters, std::int64_t activations = 0) {
  Booked now{{}, phase, step, {}};
  now.bytes[Kind::parameters] = parameters;
  now.bytes[Kind::activations] = activations;
  return now;
}

std::vector<Row> rows(const std::vector<Booked>& all, int steps = 1) {
  std::vector<Row> rows;
  for (const MemoryPhase& row : memory_phases(all, steps)) {
    rows.push_back({row.in_use, row.change, row.peak});
  }
  return rows;
}
}  // namespace

TEST_CASE("what passes is hidden where something computes on the device, and once, else exposed") {
  const Slice message = slice(Sort::message, 10, 20), copy = up(10, 20);
  const std::pair<std::vector<Slice>, const char*> cases[] = {
      {{}, "0 0, 0 0, 0 0"},
      {{compute(0, 9)}, "0 0, 0 0, 0 0"},
      {{slice(Sort::message, 0, 9, 2), up(0, 9, 2)}, "0 0, 0 0, 0 0"},
      {{message}, "10 0, 0 0, 0 0"},
      {{compute(10, 20), message}, "0 10, 0 0, 0 0"},
      {{compute(5, 12), compute(14, 15), compute(19, 30), message}, "6 4, 0 0, 0 0"},
      {{compute(0, 12), compute(14, 16), compute(8, 15), message}, "4 6, 0 0, 0 0"},
      {{compute(0, 5), compute(1, 3), slice(Sort::message, 2, 8)}, "3 3, 0 0, 0 0"},
      {{compute(0, 30), copy}, "0 0, 0 0, 0 10"},
      {{slice(Sort::compute, 0, 30, 1, host()), message, copy}, "10 0, 0 0, 10 0"},
      {{slice(Sort::compute, 0, 30, 1, cpu(), 0), message},
       "10 0, 0 0, 0 0"},  // a phase of its own
      // Whether a transfer ends on the host says nothing of what it hides.
      {{slice(Sort::transfer, 0, 9, 1, host()), compute(4, 30)}, "0 0, 4 5, 0 0"}};
  for (const auto& [slices, expected] : cases) CHECK(times(slices) == expected);
}

TEST_CASE("a step's transfers may pass in the next: they are counted when that is known") {
  OverlapMeter meter;
  const auto add = [&](int present, const std::vector<Slice>& taken) {
    meter.add(taken, present);
    return words(meter.times.kept().back().transfers[Direction::to_device]);
  };
  meter.add({}, 1);
  CHECK(add(2, {compute(0, 10)}) == "0 0");
  CHECK(add(3, {compute(10, 29, 2), compute(33, 39, 3), up(30, 40, 2)}) == "4 6");
  CHECK(add(4, {up(50, 51, 3)}) == "1 0");
  CHECK(meter.times.steps() == 3);
}

TEST_CASE("a recorder has what ended, by track, the inner before the outer, and each once") {
  Recorder recorder(cpu(), true, Recorder::traced_steps);
  Worker first("first");
  Stream second("second", cpu());
  here.step = 3;
  {
    const PhaseScope forward(Phase::forward);
    first.run({.what = "a sum", .layer = 7}, [] {
      Stream::part({"messages", Sort::wait}, [] {});
      Stream::part({"a part"}, [] {});
    });
    second.wait(first.record());
    const PhaseScope load(Phase::load);
    second.run({"reading"}, [] {});
  }
  first.synchronise();
  std::array<std::vector<Slice>, 3> tracks;
  for (const Slice& slice : recorder.take()) tracks.at(slice.track).push_back(slice);
  here.step = 0;
  CHECK(recorder.tracks() == std::vector<std::string>{"host", "first", "second"});
  const auto& [host, on_first, on_second] = tracks;
  REQUIRE(told(host) == "load/load/3, forward/forward/3, waits for first/setup/3");
  REQUIRE(told(on_first) ==
          "waits for messages/forward/3, a part/forward/3, a sum of layer 7/forward/3");
  CHECK(told(on_second) == "waits for a sum of layer 7/forward/3, reading/load/3");
  const auto in_order = [](std::initializer_list<Moment> moments) {
    return std::ranges::is_sorted(moments, {}, &Moment::time);
  };
  CHECK(in_order({host[1].begin, host[0].begin, host[0].end, host[1].end, host[2].begin}));
  CHECK(in_order({on_first[2].begin, on_first[0].begin, on_first[0].end, on_first[1].begin,
                  on_first[1].end, on_first[2].end}));
  CHECK(recorder.take().empty());
}

TEST_CASE("a recorder that sees no streams sees the host; one that is gone sees nothing") {
  {
    Recorder recorder(cpu(), false, 2);
    Stream stream("unseen", cpu());
    stream.run([] {});
    { const PhaseScope update(Phase::update); }
    CHECK(recorder.tracks() == std::vector<std::string>{"host"});
    CHECK(told(recorder.take()) == "update/update/0");
  }
  const Tensor booked_by_nobody(cpu(), Kind::data, Dtype::fp32, 1);
  { const PhaseScope told_to_nobody(Phase::update); }
  Stream after("after", cpu());
  after.run([] {});
}

TEST_CASE("the bytes in use are kept as they change, of the first eight steps") {
  Recorder recorder(cpu(), true, Recorder::traced_steps);
  const Scratch scratch(cpu(), Kind::activations, Dtype::fp32, 5);
  for (here.step = 1; here.step <= Recorder::traced_steps + 2; ++here.step) scratch.borrow();
  here.step = 0;
  const std::vector<Booked>& booked = recorder.booked();
  REQUIRE(booked.size() == 2 * Recorder::traced_steps);
  for (std::size_t i = 1; i < booked.size(); ++i) {
    CHECK(booked[i].step == static_cast<int>(i) / 2 + 1);
    CHECK(booked[i].time >= booked[i - 1].time);
    CHECK(booked[i].bytes[Kind::activations] - booked[0].bytes[Kind::activations] ==
          (i % 2 == 1 ? -20 : 0));
  }
}

TEST_CASE("memory by phase: the last of a phase's ends, the most that was in use within it") {
  using enum Phase;
  using Rows = std::vector<Row>;
  const Booked start = booked(0, setup, 10);
  // The start can have a peak of its own.
  CHECK(rows({booked(0, setup, 500), start, booked(1, load, 10, 1)})[0] == Row{10, 10, 500});
  // What was there when the first of it was booked counts with it.
  CHECK(rows({booked(0, setup, 100, 20)})[0] == Row{120, 120, 120});
  // One in which nothing is booked ends as it began.
  CHECK(rows({start, booked(1, backward, 30)}) ==
        Rows{{10, 10, 10}, {10, 0, 10}, {10, 0, 10}, {30, 20, 30}, {30, 0, 30}});
  CHECK(rows({}, 2) == Rows(9, Row{0, 0, 0}));
  // Of several micro-batches.
  CHECK(rows({start, booked(1, load, 10, 5), booked(1, forward, 10, 80), booked(1, forward, 10, 60),
              booked(1, backward, 40), booked(1, load, 40, 6), booked(1, forward, 40, 30),
              booked(1, backward, 20), booked(1, update, 10)}) ==
        Rows{{10, 10, 10}, {46, 36, 46}, {70, 24, 90}, {20, -50, 70}, {10, -10, 20}});
  // The second step goes on where the first ended, the third is left out.
  const std::vector<Booked> all = {start,
                                   booked(1, load, 10, 5),
                                   booked(1, update, 12),
                                   booked(2, load, 12, 5),
                                   booked(2, update, 11),
                                   booked(3, forward, 900)};
  const Rows both{{10, 10, 10}, {15, 5, 15}, {15, 0, 15}, {15, 0, 15}, {12, -3, 15},
                  {17, 5, 17},  {17, 0, 17}, {17, 0, 17}, {11, -6, 17}};
  CHECK(rows(all, 3) == both);
  CHECK(rows({all.begin(), all.begin() + 3}) == Rows(both.begin(), both.begin() + 5));
}
}  // namespace zero::test
