// SPDX-License-Identifier: MIT
// The watchdog: which standstill it sees, what it says of it, and what it takes for none.
#include "compute/work.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;

constexpr auto limit = 1s;
/// A task that says of no rank that it waits for it may stand a second longer.
constexpr auto others_first = 1s;
constexpr auto surely_over = 3s;

/// A watchdog and its first sentence.
struct Guard {
  /// It comes after that time or later, and tells how long the task really waited.
  void check(const std::string& what, std::chrono::seconds after, const std::string& whom = "") {
    const bool ends = said.wait_for(10 * surely_over) == std::future_status::ready;
    const std::string sentence = ends ? said.get() : "nothing";
    const auto passed = std::chrono::steady_clock::now() - start;
    CHECK(passed >= after);
    bool tells = false;
    for (auto s = after; s <= passed; ++s) {
      tells |= sentence == fmt::format(
                               "{} has waited {} s{}: a rank is stuck or gone, or a step "
                               "takes longer than --timeout allows",
                               what, s.count(), whom);
    }
    CHECK_MESSAGE(tells, sentence);
  }

  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::promise<std::string> promise;
  std::future<std::string> said = promise.get_future();
  std::jthread thread =
      watchdog(limit, [this](const Error& error) { promise.set_value(error.what()); });
};

/// Work of a device that is never done.
struct Never : DeviceMark {
  Never() : DeviceMark(cpu()) {}
  bool passed() const override { return false; }
  std::chrono::steady_clock::time_point time() const override { return {}; }
};
}  // namespace

TEST_CASE("a task that does not end is named, with its step, phase and stream") {
  std::promise<void> end;
  Guard guard;
  Worker stream("compute");
  here.step = 3;
  {
    const PhaseScope phase(Phase::backward);
    stream.run([&] { end.get_future().wait(); });
  }
  here.step = 0;
  guard.check("step 3, backward: a task on stream compute", limit + others_first);
  end.set_value();
}

TEST_CASE("of all that stand still the task that waits for ranks is named, with them") {
  Guard guard;
  std::promise<void> end;
  const auto over = end.get_future().share();
  std::jthread computes([&] {
    const Working working({}, "compute");
    over.wait();
  });
  std::this_thread::sleep_for(200ms);  // so that it stands longer than the one that knows more
  std::jthread communicates([&] {
    const Working working({.what = "all_gather", .layer = 4}, "communication");
    task_waits_for({1, 2});
    over.wait();
  });
  guard.check("step 0, setup: all_gather of layer 4 on stream communication", limit,
              " for ranks 1, 2");
  end.set_value();
}

TEST_CASE("what a device was given and does not do is named, not the wait for it") {
  Guard guard;
  std::promise<void> end;
  std::jthread communicates([over = end.get_future().share()] {
    for (const int layer : {0, 1}) {  // in a queue
      const Working working({.what = "all_gather", .layer = layer}, "communication");
      task_queued(std::make_shared<Never>());
    }
    over.wait();
  });
  const Working working({}, "compute");
  guard.check("step 0, setup: all_gather of layer 0 on stream communication", limit);
  end.set_value();
}

TEST_CASE("who does many short tasks, has done a device's work or is idle does not stand still") {
  Guard guard;
  Worker compute("compute"), other("communication");
  for (int i = 0; i < 30; ++i) compute.run([] { std::this_thread::sleep_for(100ms); });
  other.wait(compute.record());
  other.synchronise();
  CHECK(guard.said.wait_for(0s) == std::future_status::timeout);
  other.run([] { task_queued(nullptr); });
  CHECK(guard.said.wait_for(surely_over) == std::future_status::timeout);
}

TEST_CASE("a task that rests does not stand still, but when it goes on and does not end") {
  Guard guard;
  const Working working;
  task_rests([] { std::this_thread::sleep_for(surely_over); });
  CHECK(guard.said.wait_for(0s) == std::future_status::timeout);
  guard.check("step 0, setup: a task on the host", limit + others_first);
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
  guard.check("step 0, setup: a task on the host", surely_over + limit);
}
}  // namespace zero::test
