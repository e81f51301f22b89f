// SPDX-License-Identifier: MIT
// Copies, and the bus between device and host: what is counted, as what it is seen, how slow a
// modelled one is.
#include "compute/bus.hpp"

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;
using Sort = Work::Sort;

Tensor tensor_of(Device device, std::int64_t size = 10, Dtype dtype = Dtype::bf16) {
  return Tensor(device, Kind::data, dtype, size);
}

View of_layer(const Tensor& tensor, int layer) {
  View view = tensor.view();
  view.layer = layer;
  return view;
}

/// Bytes "down up" since its construction.
struct Counted {
  std::string figures() const {
    return fmt::format("{} {}", bus().of(Direction::down) - down, bus().of(Direction::up) - up);
  }
  const std::int64_t down = bus().of(Direction::down), up = bus().of(Direction::up);
};

/// Until the end of the scope the bus is a modelled one.
struct Modelled {
  explicit Modelled(double gb_per_s) { bus().gb_per_s = gb_per_s; }
  ~Modelled() { bus().gb_per_s = 0; }
};
}  // namespace

TEST_CASE("a copy takes every bit; between device and host its bytes count, by direction") {
  Stream stream("copies", Device::cpu);
  for (const Device from : {Device::cpu, Device::host}) {
    for (const Device to : {Device::cpu, Device::host}) {
      const Tensor source = tensor_of(from), target = tensor_of(to);
      fill(source.view(), [](std::int64_t i) { return i + 1; });
      const Counted counted;
      for (int times = 0; times < 2; ++times) copy(stream, source.view(), target.view());
      CHECK(bits(target.view()) == bits(source.view()));
      CHECK(counted.figures() == (from == to ? "0 0" : to == Device::host ? "40 0" : "0 40"));
    }
  }
}

TEST_CASE("a copy over the bus is seen as a transfer of its direction and its layer") {
  using Seen = std::tuple<std::string, Sort, std::int64_t, Place>;
  std::vector<Seen> seen;
  Stream::observe([&](const std::string&) {
    return [&](const Work& work, Kernels&, bool begins) {
      if (begins) seen.emplace_back(words(work), work.sort, work.bytes, work.place);
    };
  });
  Stream stream("copies", Device::cpu);
  Stream::observe({});
  const Tensor device = tensor_of(Device::cpu), host = tensor_of(Device::host);
  copy(stream, of_layer(device, 3), of_layer(host, 3));
  copy(stream, of_layer(host, 4), of_layer(device, 4));
  copy(stream, device.view(), host.view());
  copy(stream, of_layer(device, 6), of_layer(tensor_of(Device::cpu), 6));
  CHECK(seen == std::vector<Seen>{{"down of layer 3", Sort::transfer, 20, Place::host},
                                  {"up of layer 4", Sort::transfer, 20, Place::device},
                                  {"down", Sort::transfer, 20, Place::host},
                                  {"copy of layer 6", Sort::copy, 20, Place::device}});
}

TEST_CASE("sides that differ in size or dtype are refused, and nothing is counted") {
  Stream stream("copies", Device::cpu);
  const Tensor source = tensor_of(Device::cpu);
  const Counted counted;
  for (const Device to : {Device::cpu, Device::host}) {
    for (const Tensor& wrong : {tensor_of(to, 9), tensor_of(to, 10, Dtype::fp16)}) {
      CHECK_THROWS_AS(copy(stream, source.view(), wrong.view()), std::logic_error);
    }
  }
  CHECK(counted.figures() == "0 0");
}

TEST_CASE("a modelled bus takes bytes over its speed, and never overflows") {
  CHECK(bus().time(1 << 30) == 0ns);
  {
    const Modelled slow(2);  // GB/s are bytes a nanosecond
    CHECK(bus().time(3000) == 1500ns);
    CHECK(bus().time(0) == 0ns);
  }
  const Modelled crawls(1e-300);
  CHECK(bus().time(1) == std::chrono::nanoseconds(1'000'000'000'000'000'000));
}

TEST_CASE("each copy over a modelled bus is as slow as that, and no other") {
  const Tensor device = tensor_of(Device::cpu, 10'000), host = tensor_of(Device::host, 10'000);
  Worker stream("copies");
  const Modelled slow(0.001);  // 20 ms for 20 000 bytes
  const auto three_times = [&](View from, View to) {
    const auto start = std::chrono::steady_clock::now();
    for (int times = 0; times < 3; ++times) copy(stream, from, to);
    stream.synchronise();
    return std::chrono::steady_clock::now() - start;
  };
  CHECK(three_times(device.view(), host.view()) >= 60ms);
  CHECK(three_times(host.view(), device.view()) >= 60ms);
  CHECK(three_times(device.view(), tensor_of(Device::cpu, 10'000).view()) < 60ms);
}

TEST_CASE("a slow bus is no standing still to the watchdog") {
  std::promise<std::string> expired;
  std::future<std::string> said = expired.get_future();
  const std::jthread thread =
      watchdog(500ms, [&](const Error& error) { expired.set_value(error.what()); });
  const Tensor device = tensor_of(Device::cpu), host = tensor_of(Device::host);
  Worker stream("copies");
  const Modelled slow(20 / 2e9);  // two seconds for 20 bytes: half a second and one are too long
  copy(stream, device.view(), host.view());
  stream.synchronise();
  CHECK(said.wait_for(0s) == std::future_status::timeout);
}
}  // namespace zero::test
