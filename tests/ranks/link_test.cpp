// SPDX-License-Identifier: MIT
// Collectives on a modelled link.
#include <doctest/doctest.h>

#include "tests/ranks/ranks.hpp"

namespace zero::test {
TEST_CASE("a link's time: for each other rank the latency and its part of the vector") {
  CHECK((Link{10, 50}.time(1'000'000, 4) == std::chrono::microseconds(3 * (50 + 200))));
  CHECK((Link{0, 50}.time(1'000'000, 4) == std::chrono::microseconds(150)));
  CHECK((Link{8, 0}.time(3'000'000, 3) == std::chrono::milliseconds(2)));
  CHECK((Link{8, 50}.time(3'000'000, 1) == std::chrono::milliseconds(0)));
  CHECK_FALSE(Link().modelled());
}

TEST_CASE("on a modelled link a collective takes its time, from when the last rank is there") {
  using namespace std::chrono_literals;
  // 20 ms for each other rank, half of it latency: 8000 fp32 to each at 25.6 Mbit/s.
  const Layout layout({8000 * ranks().size}, ranks().rank, ranks().size);
  Communicator comm = ranks().communicator({.link = 25.6e-3, .latency = 10'000}, layout);
  Stream stream("test", device(), Stream::Mode::worker);
  const Tensor tensor(device(), Kind::gradients, Dtype::fp32, layout.full_size());
  const View full = tensor.view(), shard = layout.shard_of(layout.layer(tensor, 0));
  // From when the last rank calls it until the first one has it: the ranks share a clock.
  const auto time_of = [&](const std::function<void()>& collective) {
    const auto now = [] { return Clock::now().time_since_epoch() / 1ns; };
    if (ranks().rank == 1) std::this_thread::sleep_for(30ms);
    const std::int64_t called = now();
    collective();
    stream.synchronise();
    const std::int64_t times[] = {called, now()};
    const auto all = comm.gather(std::vector<std::uint64_t>(std::begin(times), std::end(times)));
    std::int64_t last_call = 0, first_end = times[1];
    for (std::size_t r = 0; r < all.size(); r += 2) {
      last_call = std::max(last_call, static_cast<std::int64_t>(all[r]));
      first_end = std::min(first_end, static_cast<std::int64_t>(all[r + 1]));
    }
    return std::chrono::nanoseconds(first_end - last_call);
  };
  const auto check = [&](std::chrono::nanoseconds each, const std::function<void()>& collective) {
    const auto least = (ranks().size - 1) * each, most = least + least / 2 + 5ms;
    auto took = time_of(collective);
    CHECK(took >= least);
    // A machine at work makes some late, but hardly all.
    for (int more = 20; took >= most && more > 0; --more) took = time_of(collective);
    CHECK(took < most);
  };
  check(20ms, [&] { comm.all_gather(stream, full); });
  check(20ms, [&] { comm.reduce_scatter_mean(stream, full, shard); });
  check(40ms, [&] { comm.all_reduce_mean(stream, full); });
  Sums sums(device());
  check(10ms, [&] { comm.sum(stream, sums); });
}
}  // namespace zero::test
