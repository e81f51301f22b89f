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
  // 100 ms for each other rank, half of it latency: 8000 fp32 to each at 5.12 Mbit/s.
  const Layout layout({8000 * ranks().size}, ranks().rank, ranks().size);
  Communicator comm = ranks().communicator({.link = 5.12e-3, .latency = 50'000}, layout);
  Stream stream("test", device(), Stream::Mode::worker);
  const Tensor tensor(device(), Kind::gradients, Dtype::fp32, layout.full_size());
  const View full = tensor.view(), shard = layout.shard_of(layout.layer(tensor, 0));
  const auto check = [&](auto least, const std::function<void()>& collective) {
    comm.gather(std::vector<std::uint64_t>{0});  // all begin together
    const auto begin = std::chrono::steady_clock::now();
    collective();
    stream.synchronise();
    const auto took = std::chrono::steady_clock::now() - begin;
    CHECK(took >= (ranks().size - 1) * least);
    CHECK(took < (ranks().size - 1) * (least + 45ms) + 45ms);
  };
  check(100ms, [&] { comm.all_gather(stream, full); });
  check(100ms, [&] { comm.reduce_scatter_mean(stream, full, shard); });
  check(200ms, [&] { comm.all_reduce_mean(stream, full); });
  Sums sums(device());
  check(50ms, [&] { comm.sum(stream, sums); });
  if (ranks().size != 2) return;
  check(170ms, [&] {
    if (ranks().rank == 1) std::this_thread::sleep_for(70ms);
    comm.all_gather(stream, full);
  });
}
}  // namespace zero::test
