// SPDX-License-Identifier: MIT
// Chapters 06 and 07 under schedules in which one of 06's two streams is always late. The run must
// be the replay's in each; built with ThreadSanitizer, each must also be free of races, and for
// every wait in layer_window.hpp there is one of these in which its absence is found
// (notes/streams.md).
#include "tests/ranks/schedules.hpp"

#include <set>

namespace zero::test {
TEST_SUITE_BEGIN("schedules");

TEST_CASE("compute is late, prefetch 0") { check_with_late("compute", 0); }

TEST_CASE("compute is late, prefetch 1") { check_with_late("compute", 1); }

TEST_CASE("compute is late, prefetch 2") { check_with_late("compute", 2); }

TEST_CASE("communication is late, prefetch 0") { check_with_late("communication", 0); }

TEST_CASE("communication is late, prefetch 1") { check_with_late("communication", 1); }

TEST_CASE("communication is late, prefetch 2") { check_with_late("communication", 2); }

TEST_CASE("a trainer's tensors go when Adam is done with them, wherever it runs") {
  const Options options = schedule_options(1, Dtype::bf16, 1);
  std::atomic<int> updated = 0;
  Stream::observe([&](const std::string&) {
    return [&](const Work& work, Kernels&, bool begins) {
      if (work.sort != Work::Sort::compute || work.what != std::string_view("adam")) return;
      begins ? std::this_thread::sleep_for(late_by) : void(++updated);
    };
  });
  {
    Part part(options, ordinary_data(options));
    Stream::observe({});
    part.step(0);
    for (const Place place : {Place::device, Place::host}) {
      ledger(place).observe([&] { CHECK(updated.load() == options.layers); });  // as they go
    }
  }
  for (const Place place : {Place::device, Place::host}) ledger(place).observe({});
}

TEST_CASE("the host thread and each stream are threads of their own") {
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
  run(options, ordinary_data(options));
  Stream::observe({});
  std::vector<std::string> names;
  std::set<std::thread::id> threads;
  for (const auto& [name, thread] : seen) {
    names.push_back(name);
    threads.insert(thread);
  }
  std::vector<std::string> expected{"communication", "compute", "host"};
  if (chapter.offloads()) {
    expected = {"communication", "compute", "copies", "host", "host cores"};
  }
  CHECK(names == expected);
  CHECK(threads.size() == expected.size());
}

TEST_SUITE_END();
}  // namespace zero::test
