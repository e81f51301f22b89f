// SPDX-License-Identifier: MIT
// Chapter 06 under schedules in which one of its two streams is always late. The run must be the
// replay's in each; built with ThreadSanitizer, each must also be free of races, and for every wait
// in layer_window.hpp there is one of these in which its absence is found (notes/streams.md).
#include <doctest/doctest.h>

#include "tests/ranks/replay.hpp"
#include "trainer.hpp"

namespace zero::test {
namespace {
struct Late {
  explicit Late(const char* stream) : stream(stream) {
    Stream::delay_for_tests(stream, std::chrono::milliseconds(2));
  }
  ~Late() { Stream::delay_for_tests(stream, std::chrono::milliseconds(0)); }
  const char* stream;
};

void check_equals_replay(int prefetch) {
  // Enough layers that slots and gradient buffers are used again within forward and backward.
  Options options = mlp_options(24, 5, Dtype::bf16);
  options.batch = 4;
  options.steps = 2;
  options.accumulate = 2;
  options.prefetch = prefetch;
  const MakeData make = ordinary_data(options);
  check_same_run(run<Trainer>(options, make), Replay(options, Family::every_micro_batch).run(make));
}
}  // namespace

TEST_CASE("compute is late, prefetch 0") {
  const Late late("compute");
  check_equals_replay(0);
}

TEST_CASE("compute is late, prefetch 1") {
  const Late late("compute");
  check_equals_replay(1);
}

TEST_CASE("compute is late, prefetch 2") {
  const Late late("compute");
  check_equals_replay(2);
}

TEST_CASE("communication is late, prefetch 0") {
  const Late late("communication");
  check_equals_replay(0);
}

TEST_CASE("communication is late, prefetch 1") {
  const Late late("communication");
  check_equals_replay(1);
}

TEST_CASE("communication is late, prefetch 2") {
  const Late late("communication");
  check_equals_replay(2);
}
}  // namespace zero::test
