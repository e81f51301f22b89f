// SPDX-License-Identifier: MIT
// The bus between device and host: which copies are refused, and how long a modelled bus takes for
// one. How many bytes a trainer copies is tested in tests/ranks/accounts_test.cpp.
#include "compute/bus.hpp"

#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
using namespace std::chrono_literals;

/// A CPU device, two tensors on it, one on its host, and a stream for copies between them.
struct Ends {
  Tensor tensor(Place place, std::int64_t size = 10, Dtype dtype = Dtype::bf16) const {
    return Tensor(place == Place::host ? cpu->host() : *cpu, Kind::data, dtype, size);
  }

  const std::unique_ptr<Device> cpu = make_cpu();
  Tensor device = tensor(Place::device), other = tensor(Place::device);
  Tensor host = tensor(Place::host);
  Stream stream{"copies", *cpu};
};
}  // namespace

TEST_CASE("sides that differ in size or dtype are refused, and nothing is counted") {
  Ends ends;
  for (const Place to : every<Place>) {
    for (const Tensor& wrong : {ends.tensor(to, 9), ends.tensor(to, 10, Dtype::fp16)}) {
      CHECK_THROWS_AS(copy(ends.stream, wrong.view(), ends.device.view()), std::logic_error);
    }
  }
  for (const auto& bytes : ends.cpu->bus.bytes) CHECK(bytes == 0);
}

TEST_CASE("a modelled bus takes bytes / speed, which never overflows") {
  CHECK(time_over({}, 1 << 30) == 0ns);
  CHECK(time_over({2}, 3000) == 1500ns);  // 2 GB/s are 2 bytes a nanosecond
  CHECK(time_over({2}, 0) == 0ns);
  CHECK(time_over({1e-300}, 1) == 1'000'000'000s);
}

TEST_CASE("a modelled bus makes copies between device and host slow, and no others") {
  Ends ends;
  ends.cpu->bus.gb_per_s = 20 / 0.5e9;  // half a second for 20 bytes
  const auto time = [&](Tensor& from, Tensor& to) {
    const auto start = std::chrono::steady_clock::now();
    copy(ends.stream, from.view(), to.view());
    return std::chrono::steady_clock::now() - start;
  };
  CHECK(time(ends.device, ends.host) >= 500ms);
  CHECK(time(ends.host, ends.device) >= 500ms);
  CHECK(time(ends.device, ends.other) < 500ms);
}
}  // namespace zero::test
