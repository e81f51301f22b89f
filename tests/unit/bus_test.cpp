// SPDX-License-Identifier: MIT
// Copies, and the bus between device and host: what is counted, as what it is seen, how slow a
// modelled one is.
#include "compute/bus.hpp"

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;
using Sort = Work::Sort;

/// A CPU of its own, two tensors on it, and two on its host.
struct Ends {
  explicit Ends(double gb_per_s = 0) {
    cpu->bus.gb_per_s = gb_per_s;
    fill(device.view(), [](std::int64_t i) { return i + 1; });
  }
  Tensor tensor(Place place, std::int64_t size = 10, Dtype dtype = Dtype::bf16) const {
    return Tensor(place == Place::host ? cpu->host() : *cpu, Kind::data, dtype, size);
  }
  /// Bytes "down up".
  std::string counted() const {
    const auto& bytes = cpu->bus.bytes;
    return fmt::format("{} {}", bytes[Direction::to_host].load(),
                       bytes[Direction::to_device].load());
  }

  const std::unique_ptr<Device> cpu = make_cpu();
  const Tensor device = tensor(Place::device), other = tensor(Place::device);
  const Tensor host = tensor(Place::host), other_host = tensor(Place::host);
};

View of_layer(const Tensor& tensor, int layer) {
  View view = tensor.view();
  view.layer = layer;
  return view;
}
}  // namespace

TEST_CASE("a copy takes every bit; between device and host its bytes count, by direction") {
  const Ends ends;
  Stream stream("copies", *ends.cpu);
  const auto copied = [&](const Tensor& from, const Tensor& to) {
    copy(stream, from.view(), to.view());
    CHECK(bits(to.view()) == bits(ends.device.view()));
    return ends.counted();
  };
  CHECK(copied(ends.device, ends.other) == "0 0");
  CHECK(copied(ends.device, ends.host) == "20 0");
  CHECK(copied(ends.host, ends.other_host) == "20 0");
  fill(ends.other.view(), 0);
  CHECK(copied(ends.host, ends.other) == "20 20");
}

TEST_CASE("a copy over the bus is seen as a transfer of its direction and its layer") {
  using Seen = std::tuple<std::string, Sort, std::int64_t, Place>;
  std::vector<Seen> seen;
  const Ends ends;
  const Onlooker onlooker("copies", *ends.cpu, [&](const Work& work, bool begins) {
    if (begins) seen.emplace_back(words(work), work.sort, work.bytes, work.place());
  });
  Stream stream("copies", *ends.cpu);
  copy(stream, of_layer(ends.device, 3), of_layer(ends.host, 3));
  copy(stream, of_layer(ends.host, 4), of_layer(ends.device, 4));
  copy(stream, ends.device.view(), ends.host.view());
  copy(stream, of_layer(ends.device, 6), of_layer(ends.other, 6));
  CHECK(seen == std::vector<Seen>{{"down of layer 3", Sort::transfer, 20, Place::host},
                                  {"up of layer 4", Sort::transfer, 20, Place::device},
                                  {"down", Sort::transfer, 20, Place::host},
                                  {"copy of layer 6", Sort::copy, 20, Place::device}});
}

TEST_CASE("sides that differ in size or dtype are refused, and nothing is counted") {
  const Ends ends;
  Stream stream("copies", *ends.cpu);
  for (const Place to : every<Place>) {
    for (const Tensor& wrong : {ends.tensor(to, 9), ends.tensor(to, 10, Dtype::fp16)}) {
      CHECK_THROWS_AS(copy(stream, ends.device.view(), wrong.view()), std::logic_error);
    }
  }
  CHECK(ends.counted() == "0 0");
}

TEST_CASE("a modelled bus takes bytes over its speed, and never overflows") {
  CHECK(time_over({}, 1 << 30) == 0ns);
  CHECK(time_over({2}, 3000) == 1500ns);  // GB/s are bytes a nanosecond
  CHECK(time_over({2}, 0) == 0ns);
  CHECK(time_over({1e-300}, 1) == 1'000'000'000s);
}

TEST_CASE(
    "a copy over a modelled bus is as slow as that, no other is, nor is that standing still") {
  std::promise<std::string> expired;
  std::future<std::string> said = expired.get_future();
  const std::jthread thread =
      watchdog(200ms, [&](const Error& error) { expired.set_value(error.what()); });
  const Ends ends(20 / 1.5e9);  // 1.5 seconds for 20 bytes: 0.2 and one would be too long
  Stream stream("copies", *ends.cpu, Stream::Mode::asynchronous);
  const auto time = [&](const Tensor& from, const Tensor& to) {
    const auto start = std::chrono::steady_clock::now();
    copy(stream, from.view(), to.view());
    stream.synchronise();
    return std::chrono::steady_clock::now() - start;
  };
  CHECK(time(ends.device, ends.host) >= 1500ms);
  CHECK(time(ends.host, ends.device) >= 1500ms);
  CHECK(time(ends.device, ends.other) < 1500ms);
  CHECK(said.wait_for(0s) == std::future_status::timeout);
}
}  // namespace zero::test
