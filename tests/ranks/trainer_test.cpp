// SPDX-License-Identifier: MIT
// The repository's promise: a chapter's run has the bits of a replay on one process (replay.cpp).
#include <csignal>
#include <cstdlib>

#include "tests/ranks/ranks.hpp"

namespace zero::test {
namespace {
/// A width and a batch that neither 2 nor 3 divides, with clipping and weight decay.
Options odd_options(Dtype dtype) {
  Options o = mlp_options(7, 3, dtype);
  o.batch = 5, o.steps = 4;
  o.lr = 1e-2, o.clip = 0.5, o.weight_decay = 0.1;
  return o;
}

void check_each_dtype(auto change) {
  for (const Dtype dtype : dtypes_of_chapter()) {
    Options options = odd_options(dtype);
    change(options);
    check_against_replay(options);
  }
}
}  // namespace

TEST_CASE("the run equals the replay: odd sizes, clipping, weight decay") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    const Options options = odd_options(dtype);
    const Said said = check_against_replay(options);
    // A gradient is clipped, and the loss changes: without that, equal bits would say nothing.
    CHECK(std::ranges::any_of(said.norms, [&](float norm) { return norm > options.clip; }));
    CHECK(said.losses.back() != said.losses.front());
  }
}

TEST_CASE("the run equals the replay: several micro-batches") {
  check_each_dtype([](Options& o) { o.accumulate = 3; });
}

TEST_CASE("the run equals the replay: the host keeps all state") {
  if (!chapter.uses(Place::disk)) return;
  check_each_dtype([](Options& o) { o.state = Place::host, o.accumulate = 2; });
}

TEST_CASE("the run equals the replay: more ranks than a layer has elements") {
  check_each_dtype([](Options& o) { o.width = 1, o.layers = o.accumulate = 2; });
}

TEST_CASE("the run equals the replay: one layer only") {
  check_each_dtype([](Options& o) { o.layers = 1; });
}

TEST_CASE("the run equals the replay: layers of different sizes") {
  for (const Task task : {Task::text, Task::toy}) {
    check_each_dtype(
        [=](Options& o) { o.task = task, o.data = DEFAULT_CORPUS, o.width = 24, o.steps = 3; });
  }
}

TEST_CASE("the run equals the replay: a llama") {
  for (const bool recompute : {false, true}) {
    check_each_dtype([=](Options& o) { o = llama_options(o), o.recompute = recompute; });
  }
}

/// cuBLAS has other kernels for large products. Only tests on a GPU (meson.build) run this case.
TEST_CASE("the run equals the replay: large products" * doctest::skip()) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    if (needs_master(dtype) && !chapter.mixed_precision) continue;
    for (const int width : {1000, 2048}) {
      Options options = mlp_options(width, 3, dtype);
      options.batch = 512, options.steps = 3;
      check_against_replay(options, {}, 1);
    }
  }
}

TEST_CASE("the run equals the replay: any number of threads on the host") {
  if (!chapter.offloads()) return;
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Options options = odd_options(dtype);
    options.width = 293;  // on up to 2 ranks a shard has 3 pieces or more for threads
    options.layers = options.steps = 2;
    for (const int threads : {2, 3, 5, 1}) {
      INFO("threads: ", threads);
      device().host().threads = threads;
      check_against_replay(options, {}, 0);
    }
  }
}

TEST_CASE("a step with a gradient that is not finite is skipped by all ranks") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    Options options = odd_options(dtype);
    options.accumulate = 2,
    options.loss_scale = 128;  // with a fixed scale fp16 skips no other step
    check_third_step_skipped(options);
  }
}

TEST_CASE("fp16's dynamic loss scale finds its way down from an overflow") {
  if (dtypes_of_chapter().back() != Dtype::fp16) return;
  Options options = odd_options(Dtype::fp16);
  options.batch = 1;
  options.width = 3;  // few outputs: gradient 2 error 2^16 / outputs overflows from error 1.5 on
  options.steps = 12;
  options.seed = 8;  // its first sample, which rank 0 has for every N, has a large error
  const Said said = check_against_replay(options);
  CHECK(said.skipped.front() == 1);
  CHECK(std::ranges::count(said.skipped, 0) > 0);
}

/// HOW in the environment says how. This case ends the job, so only a test that names it runs it.
TEST_CASE("rank 1 fails in the third step" * doctest::skip()) {
  Options options = mlp_options(64, 8);
  options.accumulate = 40;  // more work than a GPU's queue holds
  const std::int64_t bad_first = (2 * options.accumulate * ranks().size + 1) * options.batch;
  const auto fail = [=, how = std::string(std::getenv("HOW"))](Kernels&, std::int64_t first, View) {
    if (first != bad_first) return;
    if (how == "killed") std::raise(SIGKILL);
    if (how == "stopped") std::raise(SIGSTOP);
    if (how == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ExitCode::data, "sample is unreadable");
  };
  Part part(options, fail);
  // noexcept: as in a chapter's main function, nothing catches the exception.
  for (int step = 0; step < 3; ++step) [&]() noexcept { part.step(step); }();
}
}  // namespace zero::test
