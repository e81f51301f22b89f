// SPDX-License-Identifier: MIT
// Streams: the order within one, the order that events make between two, and failure: nothing that
// goes wrong may become a hang.
#include "compute/stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace zero {

namespace {

using namespace std::chrono_literals;

/// Long against everything that a stream does by itself.
constexpr auto a_while = 20ms;

constexpr Stream::Mode modes[] = {Stream::Mode::inline_, Stream::Mode::worker};

/// Delays the streams of one name until the end of the scope.
class Delay {
 public:
  explicit Delay(const std::string& name)
      : name_(name) {
    Stream::delay_for_tests(name, a_while);
  }
  ~Delay() { Stream::delay_for_tests(name_, 0us); }

 private:
  std::string name_;
};

/// A task's own exception, which nobody else could have made.
struct Mishap : std::runtime_error {
  explicit Mishap(int number)
      : std::runtime_error("mishap"),
        number(number) {}
  int number;
};

/// The number of the Mishap that f throws; 0 when it throws none.
int mishap_of(auto f) {
  try {
    f();
  } catch (const Mishap& mishap) {
    return mishap.number;
  }
  return 0;
}

/// Runs until its stream is stopped; `running` tells that it has begun.
void wait_for_stop(std::atomic<bool>& running) {
  running = true;
  while (!Stream::cancelled()) std::this_thread::sleep_for(1ms);
}

void until(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("tasks of one stream run in order") {
  for (const Stream::Mode mode : modes) {
    Stream stream("in order", mode);
    std::vector<int> order;
    for (int i = 0; i < 1000; ++i) stream.run([&order, i] { order.push_back(i); });
    stream.synchronise();
    REQUIRE(order.size() == 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(order[i] == i);
  }
}

TEST_CASE("an inline stream runs a task at once, a worker stream on a thread of its own") {
  std::thread::id where;
  Stream here("here");
  here.run([&] { where = std::this_thread::get_id(); });
  CHECK(where == std::this_thread::get_id());
  Stream there("there", Stream::Mode::worker);
  there.run([&] { where = std::this_thread::get_id(); });
  there.synchronise();
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("two streams run side by side until a wait makes one come after the other") {
  std::atomic<bool> go = false;
  std::atomic<int> value = 0;
  int seen_without = -1, seen_with = -1;
  Stream first("first", Stream::Mode::worker);
  Stream second("second", Stream::Mode::worker);
  first.run([&] {
    until(go);
    value = 1;
  });
  second.run([&] { seen_without = value; });
  second.synchronise();  // would hang if second came after first
  CHECK(seen_without == 0);
  second.wait(first.record());
  second.run([&] { seen_with = value; });
  std::this_thread::sleep_for(a_while);  // time enough to see 0 if the wait were missing
  go = true;
  second.synchronise();
  CHECK(seen_with == 1);
}

TEST_CASE("a delay brings about the order in which a missing wait shows, until it is taken away") {
  // What is put on first happens before what is put on second if nothing delays it. Schedulers
  // promise neither order: so each is given some tries.
  const auto second_overtakes = [] {
    std::atomic<int> value = 0;
    int seen = -1;
    Stream first("first", Stream::Mode::worker);
    Stream second("second", Stream::Mode::worker);
    first.run([&] { value = 1; });
    std::this_thread::sleep_for(a_while / 4);
    second.run([&] { seen = value; });
    second.synchronise();
    return seen == 0;
  };
  const auto in_some_try = [&](bool overtakes) {
    int tries = 20;
    while (tries > 0 && second_overtakes() != overtakes) --tries;
    return tries > 0;
  };
  {
    const Delay of_another("another");
    CHECK(in_some_try(false));
  }
  {
    const Delay delay("first");
    CHECK(in_some_try(true));
  }
  CHECK(in_some_try(false));
}

TEST_CASE("a wait hands plain memory over from stream to stream, there and back") {
  const Delay delay("producer");
  Stream producer("producer", Stream::Mode::worker);
  Stream consumer("consumer", Stream::Mode::worker);
  int box = 0;  // not atomic: ThreadSanitizer sees whether the waits are edges
  std::vector<int> seen;
  for (int i = 1; i <= 3; ++i) {
    producer.wait(consumer.record());
    producer.run([&box, i] { box = i; });
    consumer.wait(producer.record());
    consumer.run([&] { seen.push_back(box); });
  }
  consumer.synchronise();
  CHECK(seen == std::vector<int>{1, 2, 3});
}

TEST_CASE("an event is the moment of its recording, not the end of the stream") {
  Stream early("early", Stream::Mode::worker);
  Stream late("late", Stream::Mode::worker);
  std::atomic<bool> running = false;
  bool ran = false;
  early.run([] {});
  const Event event = early.record();
  early.run([&] { wait_for_stop(running); });
  late.wait(event);
  late.run([&] { ran = true; });
  late.synchronise();  // would hang if it waited for what comes after the event
  CHECK(ran);
  early.stop();
}

TEST_CASE("an inline stream waits for a worker's event where it stands") {
  const Delay delay("slow");
  Stream slow("slow", Stream::Mode::worker);
  Stream direct("direct");
  int value = 0;
  slow.run([&] { value = 1; });
  direct.wait(slow.record());
  CHECK(value == 1);
  slow.wait(direct.record());  // has passed already
  slow.wait(Event());
  slow.synchronise();
}

TEST_CASE("synchronise waits until the stream is idle") {
  const Delay delay("slow");
  Stream slow("slow", Stream::Mode::worker);
  int done = 0;
  for (int i = 0; i < 3; ++i) slow.run([&] { ++done; });
  slow.synchronise();
  CHECK(done == 3);
  slow.synchronise();
}

TEST_CASE("a task runs in the phase of whoever put it on the stream") {
  for (const Stream::Mode mode : modes) {
    Stream stream("phases", mode);
    std::vector<Phase> seen;
    const auto note = [&] { seen.push_back(current_phase); };
    stream.run(note);
    {
      const PhaseScope forward(Phase::forward);
      stream.run(note);
      {
        const PhaseScope update(Phase::update);
        stream.run(note);
      }
      stream.run(note);
    }
    stream.run(note);
    stream.synchronise();
    CHECK(seen == std::vector<Phase>{
                      Phase::setup, Phase::forward, Phase::update, Phase::forward, Phase::setup});
  }
}

TEST_CASE("an observer is called around each task, where the task is, and nowhere else") {
  struct Call {
    bool operator==(const Call&) const = default;
    std::string stream;
    Phase phase;
    bool begins;
    int tasks_done;
  };
  for (const Stream::Mode mode : modes) {
    std::vector<Call> calls;
    std::vector<const Kernels*> kernels;
    std::vector<std::thread::id> threads;
    int done = 0;
    Stream before("before", mode);
    Stream::observe([&](const std::string& stream, Phase phase, Kernels& on, bool begins) {
      calls.push_back({stream, phase, begins, done});
      kernels.push_back(&on);
      threads.push_back(std::this_thread::get_id());
    });
    Stream stream("observed", mode);
    Stream::observe(nullptr);
    Stream after("after", mode);
    std::thread::id task_thread;
    for (Stream* each : {&before, &stream, &after}) {
      const PhaseScope forward(Phase::forward);
      each->run([&] {
        if (each == &stream) task_thread = std::this_thread::get_id();
        ++done;
      });
      each->synchronise();  // records and waits, which are no tasks
    }
    CHECK(calls == std::vector<Call>{{"observed", Phase::forward, true, 1},
                                     {"observed", Phase::forward, false, 2}});
    CHECK(kernels == std::vector<const Kernels*>(2, &stream.kernels()));
    CHECK(threads == std::vector<std::thread::id>(2, task_thread));
  }
}

TEST_CASE("an observer hears of no end of a task that throws, and nothing of dropped ones") {
  for (const Stream::Mode mode : modes) {
    std::vector<bool> begins;
    Stream::observe(
        [&](const std::string&, Phase, Kernels&, bool begin) { begins.push_back(begin); });
    Stream stream("observed", mode);
    Stream::observe(nullptr);
    CHECK(mishap_of([&] {
            stream.run([] { throw Mishap(1); });
            stream.run([] {});
            stream.synchronise();
          }) == 1);
    CHECK(begins == std::vector<bool>{true});
  }
}

TEST_CASE("an inline stream rethrows at once") {
  Stream stream("inline");
  CHECK(mishap_of([&] { stream.run([] { throw Mishap(1); }); }) == 1);
  // Nothing is left behind: whoever caught it may go on.
  bool ran = false;
  stream.run([&] { ran = true; });
  CHECK(ran);
  CHECK_NOTHROW(stream.synchronise());
}

TEST_CASE("a failing task poisons its worker stream") {
  Stream stream("poisoned", Stream::Mode::worker);
  bool before = false, after = false;
  stream.run([&] { before = true; });
  stream.run([] { throw Mishap(7); });
  stream.run([&] { after = true; });
  CHECK(mishap_of([&] { stream.synchronise(); }) == 7);
  CHECK(before);
  CHECK(!after);
  // The first failure is the one that is told, again and again.
  stream.run([] { throw Mishap(8); });
  CHECK(mishap_of([&] { stream.synchronise(); }) == 7);
}

TEST_CASE("a failure reaches every stream that waits for it, with the same exception") {
  Stream first("first", Stream::Mode::worker);
  Stream second("second", Stream::Mode::worker);
  Stream third("third", Stream::Mode::worker);
  Stream direct("direct");
  bool ran = false;
  const Event good = first.record();
  first.run([] { throw Mishap(3); });
  const Event bad = first.record();
  second.wait(good);
  second.synchronise();  // what came before the failure is not touched by it
  second.wait(bad);
  second.run([&] { ran = true; });
  third.wait(second.record());
  third.run([&] { ran = true; });
  CHECK(mishap_of([&] { third.synchronise(); }) == 3);
  CHECK(mishap_of([&] { second.synchronise(); }) == 3);
  CHECK(mishap_of([&] { direct.wait(bad); }) == 3);
  CHECK(!ran);
}

TEST_CASE("stop drops what has not started, and a running task sees it") {
  Stream stream("stopped", Stream::Mode::worker);
  Stream waiting("waiting", Stream::Mode::worker);
  std::atomic<bool> running = false;
  bool dropped = true;
  CHECK(!Stream::cancelled());
  stream.run([&] { wait_for_stop(running); });
  stream.run([&] { dropped = false; });
  waiting.wait(stream.record());
  until(running);
  stream.stop();
  CHECK(dropped);
  CHECK(!Stream::cancelled());  // this thread belongs to no stream
  CHECK_THROWS_WITH_AS(waiting.synchronise(), "the stream was stopped", std::runtime_error);
}

TEST_CASE("a stopped stream answers, and stops again, without a hang") {
  Stream stream("stopped", Stream::Mode::worker);
  bool ran = false;
  stream.stop();
  stream.stop();
  stream.run([&] { ran = true; });
  CHECK_THROWS_WITH_AS(stream.synchronise(), "the stream was stopped", std::runtime_error);
  CHECK(!ran);
}

TEST_CASE("a stream is stopped while it waits for another that never gets there") {
  Stream stuck("stuck", Stream::Mode::worker);
  std::atomic<bool> running = false;
  bool ran = false;
  stuck.run([&] { wait_for_stop(running); });
  {
    Stream waiting("waiting", Stream::Mode::worker);
    waiting.wait(stuck.record());
    waiting.run([&] { ran = true; });
    until(running);
  }
  CHECK(!ran);
}

TEST_CASE("the host waits for room when 4096 tasks wait") {
  Stream stream("test", Stream::Mode::worker);
  std::atomic<bool> open = false;
  std::atomic<int> put = 0;
  stream.run([&] { until(open); });
  std::thread host([&] {
    for (int i = 0; i < 5000; ++i) {
      stream.run([] {});
      ++put;
    }
  });
  while (put < 4096) std::this_thread::yield();
  std::this_thread::sleep_for(a_while);
  CHECK(put <= 4097);  // the first task may have been taken from the queue, or not yet
  open = true;
  host.join();
  stream.synchronise();
  CHECK(put == 5000);
}

TEST_CASE("streams that wait for each other's events go, whichever goes first") {
  for (const bool first_goes_first : {true, false}) {
    std::atomic<bool> running = false;
    bool ran = false;
    auto first = std::make_unique<Stream>("first", Stream::Mode::worker);
    auto second = std::make_unique<Stream>("second", Stream::Mode::worker);
    first->run([&] { wait_for_stop(running); });
    for (int i = 0; i < 3; ++i) {
      second->wait(first->record());
      second->run([&] { ran = true; });
      first->wait(second->record());
      first->run([&] { ran = true; });
    }
    until(running);
    (first_goes_first ? first : second).reset();
    (first_goes_first ? second : first).reset();
    CHECK(!ran);
  }
}

}  // namespace zero
