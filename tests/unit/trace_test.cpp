// SPDX-License-Identifier: MIT
// How much of messages' and copies' time computation hides, and which slices of time a recorder
// keeps. What else a trace says is tested on the chapters, in tests/programs/recording_test.py.
#include "tests/unit/checks.hpp"
#include "trace/overlap.hpp"

namespace zero::test {
namespace {
using Type = Work::Type;

/// A slice from millisecond `begin` to `end`. Track 0 is the host's, any other is a stream's.
Slice slice(Type type, int begin, int end, int step = 1, Device& on = cpu(), int track = 1) {
  const auto at = [](int ms) {
    return Timestamp{Clock::time_point(std::chrono::milliseconds(ms)), {}};
  };
  const Work work{.type = type, .writes = {{.device = &on}}};
  return {work, track, Phase::forward, step, 0, at(begin), at(end)};
}
Slice compute(int begin, int end, int step = 1) { return slice(Type::compute, begin, end, step); }
Slice up(int begin, int end, int step = 1) { return slice(Type::transfer, begin, end, step); }

/// "EXPOSED HIDDEN", in milliseconds.
std::string describe(const OverlapTime& time) {
  return fmt::format("{:g} {:g}", time.exposed.count() / 1e6, time.hidden.count() / 1e6);
}
/// Step 1's times of forward's messages, of copies to the host, of copies from the host.
std::string times(const std::vector<Slice>& slices) {
  const OverlapTimes of = overlap_times(slices, 1);
  return fmt::format("{}, {}, {}", describe(of.messages[Phase::forward]),
                     describe(of.transfers[Place::device][Direction::to_host]),
                     describe(of.transfers[Place::device][Direction::from_host]));
}

/// "WHAT/PHASE/STEP" of each slice, or "waits for WHAT/PHASE/STEP" if the slice is a wait.
std::string told(const std::vector<Slice>& slices) {
  std::string all;
  for (const Slice& slice : slices) {
    all += fmt::format("{}{}{}/{}/{}", all.empty() ? "" : ", ",
                       slice.work.type == Type::wait ? "waits for " : "", describe(slice.work),
                       name_of(slice.phase), slice.step);
  }
  return all;
}
}  // namespace

TEST_CASE("messages and copies are hidden while the device computes, counted once, else exposed") {
  const Slice message = slice(Type::message, 10, 20), copy = up(10, 20);
  const std::pair<std::vector<Slice>, const char*> cases[] = {
      {{}, "0 0, 0 0, 0 0"},
      {{compute(0, 9)}, "0 0, 0 0, 0 0"},
      {{slice(Type::message, 0, 9, 2), up(0, 9, 2)}, "0 0, 0 0, 0 0"},
      {{message}, "10 0, 0 0, 0 0"},
      {{compute(10, 20), message}, "0 10, 0 0, 0 0"},
      {{compute(5, 12), compute(14, 15), compute(19, 30), message}, "6 4, 0 0, 0 0"},
      {{compute(0, 12), compute(14, 16), compute(8, 15), message}, "4 6, 0 0, 0 0"},
      {{compute(0, 5), compute(1, 3), slice(Type::message, 2, 8)}, "3 3, 0 0, 0 0"},
      {{compute(0, 30), copy}, "0 0, 0 0, 0 10"},
      {{slice(Type::compute, 0, 30, 1, host()), message, copy}, "10 0, 0 0, 10 0"},
      {{slice(Type::compute, 0, 30, 1, cpu(), 0), message},
       "10 0, 0 0, 0 0"},  // the host's phase hides nothing
      // A copy to the host is hidden by the device's computation, too.
      {{slice(Type::transfer, 0, 9, 1, host()), compute(4, 30)}, "0 0, 4 5, 0 0"}};
  for (const auto& [slices, expected] : cases) CHECK(times(slices) == expected);
}

TEST_CASE("a step's transfers may pass in the next step, after which they are counted") {
  OverlapMeter meter;
  const auto add = [&](int present, const std::vector<Slice>& taken) {
    meter.add(taken, present);
    return describe(meter.times.kept.back().transfers[Place::device][Direction::from_host]);
  };
  meter.add({}, 1);
  meter.add(std::vector{compute(0, 10)}, 2);
  CHECK(add(3, {compute(10, 29, 2), compute(33, 39, 3)}) == "0 0");
  CHECK(add(4, {up(30, 40, 2)}) == "4 6");
  CHECK(add(5, {up(50, 51, 3)}) == "1 0");
  CHECK(meter.times.steps == 3);
}

TEST_CASE("a recorder gives what ended, by track, the inner before the outer, and once") {
  Recorder recorder(cpu(), true, false, false);
  Worker first("first");
  Stream second("second", cpu());
  here.step = 3;
  {
    const PhaseScope forward(Phase::forward);
    first.run({.what = "a sum", .layer = 7}, [] {
      Stream::part({"messages", Type::wait}, [] {});
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
  const auto in_order = [](std::initializer_list<Timestamp> moments) {
    return std::ranges::is_sorted(moments, {}, &Timestamp::time);
  };
  CHECK(in_order({host[1].begin, host[0].begin, host[0].end, host[1].end, host[2].begin}));
  CHECK(in_order({on_first[2].begin, on_first[0].begin, on_first[0].end, on_first[1].begin,
                  on_first[1].end, on_first[2].end}));
  CHECK(recorder.take().empty());
}

TEST_CASE("a recorder without streams sees the host; after its end nothing calls it") {
  {
    Recorder recorder(cpu(), false, false, false);
    Stream stream("unseen", cpu());
    stream.run([] {});
    { const PhaseScope update(Phase::update); }
    CHECK(recorder.tracks() == std::vector<std::string>{"host"});
    CHECK(told(recorder.take()) == "update/update/0");
  }
  Tensor booked_by_nobody(cpu(), Kind::data, Dtype::fp32, 1);
  { const PhaseScope told_to_nobody(Phase::update); }
  Stream after("after", cpu());
  after.run([] {});
}

TEST_CASE("a recorder keeps the actions of the first eight steps of a resumed run") {
  Recorder recorder(cpu(), true, true, true);
  recorder.before = 5;
  Stream stream("compute", cpu());
  Tensor tensor(cpu(), Kind::data, Dtype::bf16, 2);
  const std::size_t first = recorder.actions().size();  // behind the tensor's action
  for (here.step = 6; here.step <= 5 + Recorder::traced_steps + 2; ++here.step) {
    divide(stream, tensor.view(), 2);
  }
  here.step = 0;
  REQUIRE(recorder.actions().size() == first + Recorder::traced_steps);
  CHECK(recorder.actions()[first].step == 6);
  CHECK(recorder.actions().back().step == 13);
}
}  // namespace zero::test
