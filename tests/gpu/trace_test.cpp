// SPDX-License-Identifier: MIT
// What a recorder sees of a GPU: when the GPU did it, not when it was told to.
#include <doctest/doctest.h>

#include "tests/gpu/twins.hpp"
#include "trace/recorder.hpp"

namespace zero::test {
TEST_CASE("what a GPU has not passed yet is taken later, with the GPU's times, and none is lost") {
  constexpr std::size_t tasks = 10;
  Recorder recorder(true, Recorder::traced_steps);
  Stream stream("test", Device::cuda);
  const Tensor values = on_gpu(1 << 25);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < tasks; ++i) {
    stream.run({.what = "a long division", .layer = static_cast<int>(i)},
               [&, &on = stream.kernels()] { on.divide(values.view(), 3); });
  }
  const auto told = Clock::now();
  std::vector<Slice> slices = recorder.take().at(1).second;
  CHECK(slices.size() < tasks);
  stream.synchronise();
  const auto end = Clock::now();
  const std::vector<Slice> rest = recorder.take().at(1).second;
  slices.insert(slices.end(), rest.begin(), rest.end());
  REQUIRE(slices.size() == tasks);
  CHECK(recorder.take().at(1).second.empty());
  for (std::size_t i = 0; i < tasks; ++i) {
    CHECK(slices[i].work.layer == static_cast<int>(i));
    CHECK(slices[i].begin.time() < slices[i].end.time());
    if (i > 0) CHECK(slices[i - 1].end.time() <= slices[i].begin.time());
  }
  // The two clocks are set by each other as well as the host sees the GPU get somewhere.
  constexpr auto tolerance = std::chrono::milliseconds(5);
  CHECK(slices.front().begin.time() > begin - tolerance);
  CHECK(slices.back().end.time() > told);
  CHECK(slices.back().end.time() < end + tolerance);
}
}  // namespace zero::test
