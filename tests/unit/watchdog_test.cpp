// SPDX-License-Identifier: MIT
// The watchdog: what it takes for a standstill. What it says of ranks is for the programs' tests.
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

/// One second that a task may take, and one more where nobody names a rank that is waited for.
constexpr auto surely_over = 3s;

struct Guard {
  bool barks_within(std::chrono::milliseconds time) {
    return said.wait_for(time) == std::future_status::ready;
  }

  std::promise<std::string> promise;
  std::future<std::string> said = promise.get_future();
  std::jthread thread = watchdog(1s, [this](const Error& why) { promise.set_value(why.what()); });
};
}  // namespace

TEST_CASE("a stream stands still in a wait of its own, and its last task is named") {
  Guard guard;
  std::promise<Point> never;
  Worker stream("compute");
  here.step = 3;
  {
    const PhaseScope phase(Phase::backward);
    stream.run({"clear", Work::Sort::compute, 2}, [] {});
  }
  here.step = 0;
  stream.wait(never.get_future());
  CHECK(guard.said.get().starts_with(
      "step 3, backward: since clear of layer 2 on stream compute began, nothing has ended for "));
  never.set_value({});
}

TEST_CASE("who does many short tasks or is idle does not stand still") {
  Guard guard;
  Worker compute("compute"), other("communication");
  for (int i = 0; i < 30; ++i) compute.run([] { std::this_thread::sleep_for(100ms); });
  other.wait(compute.record());
  other.synchronise();
  CHECK(!guard.barks_within(surely_over));
}

TEST_CASE("a modelled time does not stand still, but what goes on after it and does not end") {
  Guard guard;
  const Working working;
  sleep_precisely_until(std::chrono::steady_clock::now() + surely_over);
  CHECK(!guard.barks_within(0s));
  CHECK(guard.barks_within(10 * surely_over));
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
  CHECK(!guard.barks_within(300ms));
}
}  // namespace zero::test
