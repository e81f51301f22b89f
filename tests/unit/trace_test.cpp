// SPDX-License-Identifier: MIT
// What is recorded of streams, phases and the ledger, and how much of the messages' time is hidden.
#include "tests/unit/checks.hpp"
#include "trace/overlap.hpp"

namespace zero::test {
namespace {
using Sort = Work::Sort;

/// A slice between two milliseconds, of a stream's but for track 0.
Slice slice(Sort sort, int begin, int end, int step = 1, Device& on = cpu(), int track = 1) {
  const auto at = [](int ms) {
    return Moment{Clock::time_point(std::chrono::milliseconds(ms)), {}};
  };
  const Work work{.sort = sort, .writes = {{.device = &on}}};
  return {work, track, Phase::forward, step, 0, at(begin), at(end)};
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
                     words(of.transfers[Place::device][Direction::to_host]),
                     words(of.transfers[Place::device][Direction::from_host]));
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
    return words(meter.times.kept.back().transfers[Place::device][Direction::from_host]);
  };
  meter.add({}, 1);
  CHECK(add(2, {compute(0, 10)}) == "0 0");
  CHECK(add(3, {compute(10, 29, 2), compute(33, 39, 3), up(30, 40, 2)}) == "4 6");
  CHECK(add(4, {up(50, 51, 3)}) == "1 0");
  CHECK(meter.times.steps == 3);
}

TEST_CASE("a recorder has what ended, by track, the inner before the outer, and each once") {
  Recorder recorder(cpu(), true, false, false);
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
    Recorder recorder(cpu(), false, false, false);
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

TEST_CASE("what the program asked for is kept in its order, with its line, of eight steps") {
  Recorder recorder(cpu(), true, true, true);
  recorder.before = 5;
  Stream stream("compute", cpu());
  const Tensor tensor(cpu(), Kind::data, Dtype::bf16, 2);
  View view = tensor.view();
  view.name = "numbers";
  const Scratch scratch(cpu(), Kind::activations, Dtype::fp32, 5);
  const std::size_t first = recorder.orders().size();  // the tensor's
  for (here.step = 6; here.step <= 5 + Recorder::traced_steps + 2; ++here.step) {
    const Borrowed lent = scratch.borrow();
    const PhaseScope phase(Phase::update);
    stream.run(work_on("fill", {view}, {view}), [=] { view.as<Bf16>()[0] = narrow<Bf16>(2); });
    divide(stream, view, 2);
  }
  here.step = 0;
  const std::vector<Order>& orders = recorder.orders();
  REQUIRE(orders.size() == first + 4 * Recorder::traced_steps);
  for (std::size_t i = first; i < orders.size(); ++i) {
    const Order &borrow = orders[i], &divided = orders[i + 2];
    CHECK(borrow.step == static_cast<int>(i - first) / 4 + 6);
    CHECK(borrow.kind == Kind::activations);
    CHECK(borrow.change == 20);
    CHECK(divided.during == Phase::update);
    CHECK(divided.bytes == borrow.bytes);
    REQUIRE(divided.sites.size() == 1);
    CHECK(divided.sites[0].line() == __LINE__ - 13);
    i += 3;
    CHECK(orders[i].change == -20);
    CHECK(orders[i].bytes[Kind::activations] == borrow.bytes[Kind::activations] - 20);
  }
  const std::vector<Slice> slices = recorder.take();
  const auto of = [](const Slice& slice) { return slice.track == 1; };
  const auto filled = std::ranges::find_if(slices, of);
  REQUIRE(filled != slices.end());
  CHECK(orders.at(filled->order).change == 0);
  CHECK(filled->values == std::vector<std::vector<float>>{{2, 0}});
  CHECK(std::next(filled, 1)->values == std::vector<std::vector<float>>{{1, 0}});
}
}  // namespace zero::test
