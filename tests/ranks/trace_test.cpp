// SPDX-License-Identifier: MIT
// The ranks' clocks, which need not agree, and a trace by one of them.
#include "trace/chrome_trace.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/ranks/ranks.hpp"

namespace zero::test {
namespace {
using std::chrono::nanoseconds;

/// Two hosts' clocks begin when the hosts do: here an hour later on each rank than on the one
/// before.
nanoseconds ahead() { return std::chrono::hours(ranks().rank); }
Clock::time_point shifted_clock() { return Clock::now() + ahead(); }

struct Talk {
  const Options options = mlp_options(8, 1);
  const Layout layout{architecture(options).sizes(), ranks().rank, ranks().size};
  Communicator comm = ranks().communicator(options, layout);
};
}  // namespace

TEST_CASE("the offset of a clock is within its error, whoever comes late") {
  Talk talk;
  for (int late = 0; late < ranks().size; ++late) {
    if (ranks().rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ClockOffset clock = clock_offset(talk.comm, shifted_clock);
    CHECK(std::chrono::abs(clock.offset + ahead()) <= clock.error);
    CHECK(clock.error < std::chrono::seconds(1));
    if (ranks().rank == 0) CHECK(clock.error == nanoseconds(0));
  }
}

TEST_CASE("of many rounds the shortest counts") {
  Talk talk;
  std::vector<Clock::time_point> readings;  // two a round
  const ClockOffset clock = clock_offset(talk.comm, [&] {
    // All but one of the rounds last long, on all ranks.
    if (readings.size() != 7) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return readings.emplace_back(shifted_clock());
  });
  nanoseconds shortest = nanoseconds::max();
  for (std::size_t i = 3; i < readings.size(); i += 2) {
    shortest = std::min(shortest, readings[i] - readings[i - 3]);
  }
  CHECK(clock.error == (ranks().rank == 0 ? nanoseconds(0) : shortest / 2));
  CHECK(std::chrono::abs(clock.offset + ahead()) <= clock.error);
}

TEST_CASE(
    "a trace is by rank 0's clock, from the first event of all, without what comes too late") {
  Talk talk;
  const auto start = [&] {  // the same moment on all ranks, by each one's clock
    const std::uint64_t mine = Clock::now().time_since_epoch().count();
    return Clock::time_point(nanoseconds(talk.comm.gather({&mine, 1})[0])) + ahead();
  }();
  const auto at = [&](nanoseconds later) { return Moment{start + later, nullptr}; };
  using namespace std::chrono_literals;
  const auto slice = [&](const char* what, int step, Moment begin, Moment end) {
    return Slice{{.what = what, .layer = ranks().rank}, Phase::forward, step, begin, end};
  };
  const auto wait = [&](const char* what, Moment begin, Moment end) {
    return Slice{{what, Work::Sort::wait}, Phase::forward, 1, begin, end};
  };
  const Moment mine = at(1s * (ranks().rank + 1));
  const Slices slices{
      {"host", {}},
      {"compute",
       {slice("a task", 1, mine, at(20s)), slice("a last task", 8, at(20s), at(21s)),
        wait("a long one", at(22s), at(22s + 1us)), wait("a short one", at(24s), at(24s + 999ns)),
        slice("too late", 9, at(25s), at(26s))}}};
  const std::string text = chrome_trace(slices, {}, "a chapter", Dtype::bf16,
                                        clock_offset(talk.comm, shifted_clock), talk.comm);
  CHECK(text.empty() == (ranks().rank > 0));
  if (ranks().rank > 0) return;
  const auto read = nlohmann::json::parse(text);
  std::vector<double> errors = read["otherData"]["clock_error_us"];
  REQUIRE(errors.size() == static_cast<std::size_t>(ranks().size));
  std::vector<std::string> names(ranks().size);
  for (const auto& event : read["traceEvents"]) {
    if (event["ph"] == "M") continue;
    const int rank = event["pid"];
    const std::string name = event["name"];
    names[rank] += name + "; ";
    CHECK(event["ts"] >= 0);
    const double expected = name.starts_with("a task")  ? 1e6 * rank
                            : name.starts_with("waits") ? 21e6
                                                        : 19e6;
    CHECK(std::abs(event["ts"].get<double>() - expected) <= 0.002 + errors[rank]);
  }
  for (int r = 0; r < ranks().size; ++r) {
    CHECK(names[r] == fmt::format("a task of layer {0}; a last task of layer {0}; waits for a long "
                                  "one; ",
                                  r));
  }
}
}  // namespace zero::test
