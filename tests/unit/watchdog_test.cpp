// SPDX-License-Identifier: MIT
// What the watchdog takes for a standstill. Which rank it names is tested in
// tests/programs/faults_test.py.
#include "compute/watchdog.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "compute/bus.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;

/// The guard below barks after 1 s without progress; 1 s later if no task names a rank it awaits.
constexpr auto surely_over = 3s;

struct Guard {  // a watchdog that keeps what it would say
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
  std::promise<RecordedEvent> never;
  Worker stream("compute");
  here.step = 3;
  {
    const PhaseScope phase(Phase::backward);
    stream.run({"clear", Work::Type::compute, 2}, [] {});
  }
  here.step = 0;
  stream.wait(never.get_future());
  CHECK(guard.said.get().starts_with(
      "step 3, backward: since clear of layer 2 on stream compute began, nothing has ended for "));
  never.set_value({});
}

TEST_CASE("a stream of many short tasks, and an idle one, are no standstill") {
  Guard guard;
  Worker compute("compute"), other("communication");
  for (int i = 0; i < 30; ++i) compute.run([] { std::this_thread::sleep_for(100ms); });
  other.wait(compute.record());
  other.synchronise();
  CHECK(!guard.barks_within(surely_over));
}

TEST_CASE("a modelled time is no standstill, but work that goes on after it is") {
  Guard guard;
  const TaskScope scope;
  sleep_precisely_until(std::chrono::steady_clock::now() + surely_over);
  CHECK(!guard.barks_within(0s));
  CHECK(guard.barks_within(10 * surely_over));
}

TEST_CASE("time in which the process is stopped does not count") {
  const pid_t child = fork();
  if (child == 0) {
    Guard guard;
    const TaskScope scope;
    std::this_thread::sleep_for(300ms);  // so that the guard begins to count
    raise(SIGSTOP);
    _exit(guard.barks_within(300ms));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);  // the child has stopped
  std::this_thread::sleep_for(surely_over);
  kill(child, SIGCONT);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
}  // namespace zero::test
