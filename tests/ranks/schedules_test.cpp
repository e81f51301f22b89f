// SPDX-License-Identifier: MIT
// Chapters 06 and 07 under schedules in which one stream is always late; in 07 also the copies over
// the bus, or the host's cores. The run must be the replay's in each; built with ThreadSanitizer,
// each must also be free of races, and for every wait in layer_window.hpp and in host.hpp there is
// one of these in which its absence is found (notes/streams.md).
#include <set>

#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
TEST_SUITE_BEGIN("schedules");

namespace {
constexpr std::chrono::milliseconds late_by{2};

/// Enough layers that slots and gradient buffers are used again within forward and backward.
Options schedule_options(int prefetch, Dtype dtype, int micro_batches) {
  Options options = mlp_options(24, 5, dtype);
  options.batch = options.steps = 4;
  options.accumulate = micro_batches;
  options.prefetch = prefetch;
  return options;
}

/// The runs equal the replay's: four steps, of which the third is skipped.
void check_equal_replay(int prefetch) {
  for (const int micro_batches : {1, 2}) {
    const Dtype dtype = micro_batches == 1 ? Dtype::fp32 : Dtype::bf16;
    INFO(std::string(name_of(dtype)), ", micro-batches: ", micro_batches, ", prefetch: ", prefetch);
    const Options options = schedule_options(prefetch, dtype, micro_batches);
    const MakeData make =
        poisoned_data(options, 3 * micro_batches * ranks().size * options.batch - 1);
    const Outcome outcome = run(options, make);
    check_same_run(outcome, replay(options, make));
    for (int s = 0; s < options.steps; ++s) CHECK(outcome.verdicts[s].skipped == (s == 2));
  }
}

void check_with_late(const char* stream) {
  const Delay delay(stream, late_by);
  for (const int prefetch : {0, 1, 2}) check_equal_replay(prefetch);
}
}  // namespace

TEST_CASE("compute is late") { check_with_late("compute"); }

TEST_CASE("communication is late") { check_with_late("communication"); }

TEST_CASE("copies are late") {
  if (chapter.offloads()) check_with_late("copies");
}

TEST_CASE("the host's cores are late") {
  if (chapter.offloads()) check_with_late("host cores");
}

TEST_CASE("the bus is slow") {
  if (!chapter.offloads()) return;
  // The smallest of the copies takes as long as a task that is late.
  const Layout layout(architecture(schedule_options(0, Dtype::bf16, 1)).sizes(), 0, ranks().size);
  const auto bytes = static_cast<double>(layout.layer_size(0) / ranks().size * 2);
  bus().gb_per_s = bytes / std::chrono::nanoseconds(late_by).count();
  check_equal_replay(1);
  bus().gb_per_s = 0;
}

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
