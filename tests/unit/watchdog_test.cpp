// SPDX-License-Identifier: MIT
// The watchdog: which standstill it sees, what it says of it, and what it takes for none.
#include "compute/work.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "compute/bus.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;

constexpr auto limit = 1s;
/// Where nobody names a rank it may last a second longer.
constexpr auto others_first = 1s;
constexpr auto surely_over = 3s;

/// A watchdog and its first sentence.
struct Guard {
  /// It comes after that time or later, and tells how long it really was, where `what` has {}.
  void check(const char* what, std::chrono::seconds after) {
    const bool ends = said.wait_for(10 * surely_over) == std::future_status::ready;
    const std::string sentence = ends ? said.get() : "nothing";
    const auto passed = std::chrono::steady_clock::now() - start;
    CHECK(passed >= after);
    bool tells = false;
    for (auto s = after; s <= passed; ++s) {
      tells |= sentence == fmt::format(fmt::runtime(what), s.count()) +
                               ": a rank is stuck or gone, or a step takes longer than --timeout "
                               "allows";
    }
    CHECK_MESSAGE(tells, sentence);
  }

  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::promise<std::string> promise;
  std::future<std::string> said = promise.get_future();
  std::jthread thread =
      watchdog(limit, [this](const Error& error) { promise.set_value(error.what()); });
};

}  // namespace

TEST_CASE("the last task begun is named, with its step, phase and stream") {
  std::promise<void> end;
  Guard guard;
  Worker stream("compute");
  here.step = 3;
  {
    const PhaseScope phase(Phase::backward);
    stream.run({"all_gather", Work::Sort::message, 2}, [&] { end.get_future().wait(); });
  }
  here.step = 0;
  guard.check(
      "step 3, backward: since all_gather of layer 2 on stream compute began, nothing has "
      "ended for {} s",
      limit + others_first);
  end.set_value();
}

TEST_CASE("of all that stand still the task that waits for ranks is named, with them") {
  Guard guard;
  std::promise<void> end;
  const auto over = end.get_future().share();
  std::jthread communicates([&] {
    const Working working({.what = "all_gather", .layer = 4}, "communication");
    while (over.wait_for(10ms) != std::future_status::ready) waits_for({1, 2});
  });
  std::this_thread::sleep_for(200ms);
  std::jthread computes([&] {
    const Working working({}, "compute");
    over.wait();
  });
  guard.check(
      "step 0, setup: all_gather of layer 4 on stream communication has waited {} s for "
      "ranks 1, 2",
      limit);
  end.set_value();
}

TEST_CASE("a stream stands still in a wait of its own, and in a point, as in a task") {
  Guard guard;
  std::promise<Point> never;
  Worker stream("compute");
  stream.run({"clear"}, [] {});
  stream.wait(never.get_future());
  guard.check("step 0, setup: since clear on stream compute began, nothing has ended for {} s",
              limit + others_first);
  never.set_value({});
}

TEST_CASE("who does many short tasks or is idle does not stand still") {
  Guard guard;
  Worker compute("compute"), other("communication");
  for (int i = 0; i < 30; ++i) compute.run([] { std::this_thread::sleep_for(100ms); });
  other.wait(compute.record());
  other.synchronise();
  CHECK(guard.said.wait_for(0s) == std::future_status::timeout);
  CHECK(guard.said.wait_for(surely_over) == std::future_status::timeout);
}

TEST_CASE("a modelled time does not stand still, but what goes on after it and does not end") {
  Guard guard;
  const Working working;
  sleep_precisely_until(std::chrono::steady_clock::now() + surely_over);
  CHECK(guard.said.wait_for(0s) == std::future_status::timeout);
  guard.check("step 0, setup: since a task on the host began, nothing has ended for {} s",
              limit + others_first);
}

TEST_CASE("time in which the process is stopped does not count") {
  Guard guard;
  const Working working;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    std::this_thread::sleep_for(surely_over);
    kill(parent, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  waitpid(child, nullptr, 0);
  CHECK(guard.said.wait_for(300ms) == std::future_status::timeout);
  guard.check("step 0, setup: since a task on the host began, nothing has ended for {} s",
              limit + others_first);
}
}  // namespace zero::test
