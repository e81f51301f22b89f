// SPDX-License-Identifier: MIT
// Streams: the order of tasks in one stream, the order that events make between two, and how a
// stream ends.
#include "compute/stream.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <numeric>
#include <set>

#include "compute/cpu/team.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;

/// Far longer than any task here takes that neither sleeps nor waits.
constexpr auto a_while = 20ms;

/// An exception that only the tasks below throw.
struct Mishap {};

void until(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(1ms);
}
}  // namespace

TEST_CASE("tasks of one stream run in order, all before synchronise returns") {
  for (const Stream::Mode mode : {Stream::Mode::synchronous, Stream::Mode::asynchronous}) {
    Stream stream("in order", cpu(), mode);
    std::vector<int> order, expected(1000);
    std::iota(expected.begin(), expected.end(), 0);
    for (const int i : expected) stream.run([&order, i] { order.push_back(i); });
    stream.synchronise();
    CHECK(order == expected);
    stream.synchronise();  // idle already
  }
}

TEST_CASE("a team does every piece once, with all its threads, and is waited for") {
  constexpr std::int64_t piece = Team::piece, counts[] = {0, 1, 3 * piece, 9 * piece - 1};
  for (const std::int64_t threads : {1, 2, 3, 5}) {
    Team team(static_cast<int>(threads));
    for (const std::int64_t count : counts) {
      INFO(threads, " threads, elements: ", count);
      const std::int64_t expected = count <= piece ? 1 : std::min(threads, (count - 1) / piece + 1);
      std::vector<int> done(count);
      std::mutex mutex;  // guards `came`
      std::set<std::thread::id> came;
      const auto comes = [&] {
        const std::lock_guard lock(mutex);
        came.insert(std::this_thread::get_id());
        return std::ssize(came);
      };
      const auto caller = std::this_thread::get_id();
      team.each_piece(count, [&](std::int64_t first, std::int64_t some) {
        for (int i = 0; i < 5000 && comes() < expected; ++i) std::this_thread::sleep_for(1ms);
        if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(5ms);
        for (std::int64_t i = first; i < first + some; ++i) ++done[i];
      });
      CHECK(std::ssize(came) == expected);
      CHECK(std::ranges::count(done, 1) == count);
    }
  }
}

TEST_CASE("an event is the moment of its recording, not the end of the stream") {
  std::atomic<bool> go = false;
  int value = 0, seen = 0;
  Worker early("early"), late("late");
  Stream direct("direct", cpu());
  early.run([&] {
    std::this_thread::sleep_for(a_while);
    value = 1;
  });
  const Event event = early.record();
  early.run([&] { until(go); });
  late.wait(event);
  late.run([&] { seen = value; });
  direct.wait(event);  // blocks this thread: `direct` is synchronous
  CHECK(value == 1);
  late.wait(direct.record());  // this event is complete when it is made
  late.wait(Event());
  late.synchronise();  // would hang if `late` waited for until(go)
  CHECK(seen == 1);
  go = true;
}

TEST_CASE("a stream's destructor waits for its tasks, whichever of two streams goes first") {
  for (const bool first_goes_first : {true, false}) {
    std::atomic<int> ran = 0;  // events below make each task wait for the one before
    auto first = std::make_unique<Worker>("first"), second = std::make_unique<Worker>("second");
    Worker third("third");
    first->run([] { std::this_thread::sleep_for(a_while); });
    for (int i = 0; i < 3; ++i) {
      second->wait(first->record());
      second->run([&] { ++ran; });
      first->wait(second->record());
      first->run([&] { ++ran; });
    }
    const Event last = first->record();
    (first_goes_first ? first : second).reset();
    CHECK(ran >= (first_goes_first ? 6 : 5));
    (first_goes_first ? second : first).reset();
    third.wait(last);  // an event outlives its stream
    third.run([&] { ++ran; });
    third.synchronise();
    CHECK(ran == 7);
  }
}

TEST_CASE(
    "an observer is told of each task, its parts and its waits, and at a wait's end what it was "
    "for") {
  const std::unique_ptr<Device> device = make_cpu();
  std::string told;
  const OneStreamObserver observer("observed", *device, [&](const Work& work, bool begins) {
    told += fmt::format("{} {}{}; ", begins ? "begin" : "end", describe(work),
                        work.type == Work::Type::wait ? ", waited for" : "");
  });
  Stream stream("observed", *device, Stream::Mode::asynchronous), other("other", *device);
  other.run({"a sum", Work::Type::compute, 3}, [] {});
  stream.run({"a task"}, [] { Stream::part({"a part"}, [] {}); });
  stream.wait(other.record());
  stream.synchronise();
  CHECK(told ==
        "begin a task; begin a part; end a part; end a task; begin a task, waited for; "
        "end a sum of layer 3, waited for; ");
}

TEST_CASE("what an inline task throws comes out of run, and an observer hears that it has ended") {
  std::vector<bool> begins;
  const OneStreamObserver observer("inline", cpu(),
                                   [&](const Work&, bool begin) { begins.push_back(begin); });
  Stream stream("inline", cpu());
  CHECK_THROWS_AS(stream.run([] { throw Mishap(); }), Mishap);
  CHECK(begins == std::vector<bool>{true, false});
}

TEST_CASE("nobody catches what a worker's task throws: it ends the process there") {
  const pid_t child = fork();
  if (child == 0) {
    std::set_terminate([] {
      try {
        std::rethrow_exception(std::current_exception());
      } catch (const Mishap&) {
        _exit(7);
      }
    });
    Worker stream("failing");
    stream.run([] { throw Mishap(); });
    stream.synchronise();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("the host waits for room when 4096 tasks wait") {
  std::atomic<bool> open = false;
  std::atomic<int> put = 0;
  Worker stream("test");
  stream.run([&] { until(open); });
  auto host = std::async(std::launch::async, [&] {
    for (; put < 5000; ++put) stream.run([] {});
  });
  while (put < 4096) std::this_thread::yield();
  // If nothing held the host up, it would put the last 904 tasks within microseconds.
  CHECK(host.wait_for(500ms) == std::future_status::timeout);
  CHECK(put == 4096);  // the first task runs; 4096 wait
  open = true;
  host.get();
  CHECK(put == 5000);
}
}  // namespace zero::test
