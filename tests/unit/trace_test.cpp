// SPDX-License-Identifier: MIT
// What is recorded of streams, phases and the ledger, and how much of the messages' time is hidden.
#include "tests/unit/checks.hpp"
#include "trace/overlap.hpp"

namespace zero::test {
namespace {
using Sort = Work::Sort;

/// A slice between two milliseconds.
Slice slice(Sort sort, int begin, int end) {
  const auto at = [](int ms) {
    return Moment{Clock::time_point() + std::chrono::milliseconds(ms), nullptr};
  };
  return {{.sort = sort}, Phase::forward, 1, at(begin), at(end)};
}
Slice message(int begin, int end) { return slice(Sort::message, begin, end); }
Slice compute(int begin, int end) { return slice(Sort::compute, begin, end); }
Slice on_host(Slice slice) {
  slice.work.place = Place::host;
  return slice;
}
Slice up(int begin, int end) { return slice(Sort::transfer, begin, end); }
Slice down(int begin, int end) { return on_host(up(begin, end)); }
Slice of_step(int step, Slice slice) {
  slice.step = step;
  return slice;
}

/// "exposed hidden", in milliseconds.
std::string words(const OverlapTime& time) {
  return fmt::format("{:g} {:g}", time.exposed.count() / 1e6, time.hidden.count() / 1e6);
}
/// Of messages, of copies down, and up.
std::string times(const Slices& tracks) {
  const OverlapTimes of = overlap_times(tracks, 1);
  const auto [to_host, to_device] = of.transfers;
  return fmt::format("{}, {}, {}", words(of.messages[static_cast<int>(Phase::forward)]),
                     words(to_host), words(to_device));
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

bool within(const Slice& inner, const Slice& outer) {
  return outer.begin.time() <= inner.begin.time() && inner.end.time() <= outer.end.time();
}
}  // namespace

TEST_CASE("what passes is hidden where something computes on the device, and once, else exposed") {
  const std::vector<Slice> messages{message(10, 20)}, copies{up(10, 20)};
  const std::pair<Slices, const char*> cases[] = {
      {{}, "0 0, 0 0, 0 0"},
      {{{"a", {compute(0, 9)}}}, "0 0, 0 0, 0 0"},
      {{{"a", {of_step(2, message(0, 9)), of_step(2, up(0, 9))}}}, "0 0, 0 0, 0 0"},
      {{{"a", messages}}, "10 0, 0 0, 0 0"},
      {{{"a", {compute(10, 20)}}, {"b", messages}}, "0 10, 0 0, 0 0"},
      {{{"a", {compute(5, 12), compute(14, 15), compute(19, 30)}}, {"b", messages}},
       "6 4, 0 0, 0 0"},
      {{{"a", {compute(0, 12), compute(14, 16)}}, {"b", {compute(8, 15)}}, {"c", messages}},
       "4 6, 0 0, 0 0"},
      {{{"a", {compute(0, 5), compute(1, 3)}}, {"b", {message(2, 8)}}}, "3 3, 0 0, 0 0"},
      {{{"a", {compute(0, 30)}}, {"b", copies}}, "0 0, 0 0, 0 10"},
      {{{"host cores", {on_host(compute(0, 30))}}, {"b", messages}, {"c", copies}},
       "10 0, 0 0, 10 0"},
      // Whether a transfer ends on the host says nothing of what it hides.
      {{{"a", {down(0, 9), compute(4, 30)}}}, "0 0, 4 5, 0 0"}};
  for (const auto& [tracks, expected] : cases) CHECK(times(tracks) == expected);
}

TEST_CASE("a step's transfers may pass in the next: they are counted when that is known") {
  OverlapMeter meter;
  const auto add = [&](int present, std::vector<Slice> computing, std::vector<Slice> copies) {
    meter.add({{"compute", computing}, {"copies", copies}}, present);
    return words(meter.steps.back().transfers[static_cast<int>(Direction::up)]);
  };
  CHECK(add(2, {of_step(1, compute(0, 10))}, {}) == "0 0");
  CHECK(add(3, {of_step(2, compute(10, 29)), of_step(3, compute(33, 39))},
            {of_step(2, up(30, 40))}) == "4 6");
  CHECK(add(4, {}, {of_step(3, up(50, 51))}) == "1 0");
  CHECK(meter.steps.size() == 3);
}

TEST_CASE("a recorder has what ended, by track, the inner before the outer, and each once") {
  Recorder recorder(true, Recorder::traced_steps);
  Worker first("first");
  Stream second("second", Device::cpu);
  current_step = 3;
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
  const Slices slices = recorder.take();
  current_step = 0;
  REQUIRE(slices.size() == 3);
  CHECK(slices[0].first + slices[1].first + slices[2].first == "hostfirstsecond");
  const auto& [host, on_first, on_second] =
      std::tie(slices[0].second, slices[1].second, slices[2].second);
  REQUIRE(told(host) == "load/load/3, forward/forward/3, waits for first/setup/3");
  REQUIRE(told(on_first) ==
          "waits for messages/forward/3, a part/forward/3, a sum of layer 7/forward/3");
  CHECK(told(on_second) == "waits for a sum of layer 7/forward/3, reading/load/3");
  CHECK(within(host[0], host[1]));
  CHECK(within(on_first[0], on_first[2]));
  CHECK(within(on_first[1], on_first[2]));
  CHECK(on_first[0].end.time() <= on_first[1].begin.time());
  CHECK(host[1].end.time() <= host[2].begin.time());
  for (const auto& [name, more] : recorder.take()) CHECK(told(more) == "");
}

TEST_CASE("a recorder that sees no streams sees the host; one that is gone sees nothing") {
  {
    Recorder recorder(false, 2);
    Stream stream("unseen", Device::cpu);
    stream.run([] {});
    { const PhaseScope update(Phase::update); }
    const Slices slices = recorder.take();
    REQUIRE(slices.size() == 1);
    CHECK(told(slices[0].second) == "update/update/0");
  }
  const Tensor booked_by_nobody(Device::cpu, Kind::data, Dtype::fp32, 1);
  { const PhaseScope told_to_nobody(Phase::update); }
  Stream after("after", Device::cpu);
  after.run([] {});
}

TEST_CASE("the bytes in use are kept as they change, of the first eight steps") {
  Recorder recorder(true, Recorder::traced_steps);
  const auto activations = static_cast<int>(Kind::activations);
  const Scratch scratch(Device::cpu, Kind::activations, Dtype::fp32, 5);
  for (current_step = 1; current_step <= Recorder::traced_steps + 2; ++current_step) {
    const Booking booking = scratch.book();
  }
  current_step = 0;
  const std::vector<Booked>& booked = recorder.booked();
  REQUIRE(booked.size() == 2 * Recorder::traced_steps);
  for (std::size_t i = 1; i < booked.size(); ++i) {
    CHECK(booked[i].step == static_cast<int>(i) / 2 + 1);
    CHECK(booked[i].time >= booked[i - 1].time);
    CHECK(booked[i].bytes[activations] - booked[0].bytes[activations] == (i % 2 == 1 ? -20 : 0));
  }
}
}  // namespace zero::test
