// SPDX-License-Identifier: MIT
// Chapter 06 under schedules in which one of its two streams is always late. The run must be the
// replay's in each; built with ThreadSanitizer, each must also be free of races, and for every wait
// in layer_window.hpp there is one of these in which its absence is found (notes/streams.md).
#include <doctest/doctest.h>

#include <bit>

#include "tests/ranks/replay.hpp"
#include "trainer.hpp"

namespace zero::test {

namespace {

struct Late {
  explicit Late(const char* stream)
      : stream(stream) {
    Stream::delay_for_tests(stream, std::chrono::milliseconds(2));
  }
  ~Late() { Stream::delay_for_tests(stream, std::chrono::milliseconds(0)); }
  const char* stream;
};

/// Enough layers that slots and gradient buffers are used again within forward and backward.
Options options_of(int prefetch) {
  Options o;
  o.task = Task::mlp;
  o.width = 24;
  o.layers = 5;
  o.batch = 4;
  o.steps = 2;
  o.accumulate = 2;
  o.dtype = Dtype::bf16;
  o.prefetch = prefetch;
  return o;
}

void check_equals_replay(int prefetch) {
  const Options options = options_of(prefetch);
  const Outcome expected =
      Replay(options, session().size(), Family::every_micro_batch).run(ordinary_data(options));
  const Outcome ours = run<Trainer>(options, ordinary_data(options));
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(ours.weights[i]) ==
        std::bit_cast<std::uint32_t>(expected.weights[i])) {
      continue;
    }
    FAIL_CHECK("weight ", i, " is ", ours.weights[i], ", expected ", expected.weights[i]);
    return;
  }
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
