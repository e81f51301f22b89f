// SPDX-License-Identifier: MIT
// Chapter 06 under schedules in which one of its two streams is always late. The run must be the
// replay's in each; built with ThreadSanitizer, each must also be free of races, and for every wait
// in layer_window.hpp there is one of these in which its absence is found (notes/streams.md).
#include <doctest/doctest.h>

#include <set>

#include "tests/ranks/replay.hpp"
#include "tests/unit/checks.hpp"
#include "trainer.hpp"

namespace zero::test {
static void check_equals_replay(const char* late, int prefetch) {
  const Delay delay(late, std::chrono::milliseconds(2));
  // Enough layers that slots and gradient buffers are used again within forward and backward.
  Options options = mlp_options(24, 5, Dtype::bf16);
  options.batch = 4;
  options.steps = options.accumulate = 2;
  options.prefetch = prefetch;
  const MakeData make = ordinary_data(options);
  check_same_run(run<Trainer>(options, make), replay(options, Family::every_micro_batch, make));
}

TEST_CASE("compute is late, prefetch 0") { check_equals_replay("compute", 0); }

TEST_CASE("compute is late, prefetch 1") { check_equals_replay("compute", 1); }

TEST_CASE("compute is late, prefetch 2") { check_equals_replay("compute", 2); }

TEST_CASE("communication is late, prefetch 0") { check_equals_replay("communication", 0); }

TEST_CASE("communication is late, prefetch 1") { check_equals_replay("communication", 1); }

TEST_CASE("communication is late, prefetch 2") { check_equals_replay("communication", 2); }

TEST_CASE("the host, compute and communication are three threads") {
  std::mutex mutex;
  std::set<std::pair<std::string, std::thread::id>> seen{{"host", std::this_thread::get_id()}};
  Stream::observe([&](const std::string& stream) {
    return [&, stream](const Work&, Kernels&, bool) {
      const std::lock_guard lock(mutex);
      seen.emplace(stream, std::this_thread::get_id());
    };
  });
  Options options = mlp_options(24, 5);
  options.steps = 2;
  run<Trainer>(options, ordinary_data(options));
  Stream::observe({});
  std::string names;
  std::set<std::thread::id> threads;
  for (const auto& [name, thread] : seen) {
    names += name + "; ";
    threads.insert(thread);
  }
  CHECK(names == "communication; compute; host; ");
  CHECK(threads.size() == 3);
}
}  // namespace zero::test
