// SPDX-License-Identifier: MIT
// Chapter 07 under schedules in which the copies over the bus, or the host's cores, are always
// late: for every wait in host.hpp there is one of these in which its absence is found
// (notes/streams.md).
#include "tests/ranks/schedules.hpp"

namespace zero::test {
TEST_SUITE_BEGIN("schedules");

namespace {
/// A bus on which the smallest of the copies takes that long.
struct SlowBus {
  SlowBus() {
    const Layout layout(architecture(schedule_options(0, Dtype::bf16, 1)).sizes(), 0, ranks().size);
    const auto bytes = static_cast<double>(layout.layer_size(0) / ranks().size * 2);
    bus().gb_per_s = bytes / std::chrono::nanoseconds(late_by).count();
  }
  ~SlowBus() { bus().gb_per_s = 0; }
};
}  // namespace

TEST_CASE("copies are late, prefetch 0") { check_with_late("copies", 0); }

TEST_CASE("copies are late, prefetch 1") { check_with_late("copies", 1); }

TEST_CASE("copies are late, prefetch 2") { check_with_late("copies", 2); }

TEST_CASE("the host's cores are late, prefetch 0") { check_with_late("host cores", 0); }

TEST_CASE("the host's cores are late, prefetch 1") { check_with_late("host cores", 1); }

TEST_CASE("the host's cores are late, prefetch 2") { check_with_late("host cores", 2); }

TEST_CASE("the bus is slow") {
  const SlowBus slow;
  check_equal_replay(1);
}

TEST_SUITE_END();
}  // namespace zero::test
