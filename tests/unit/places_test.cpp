// SPDX-License-Identifier: MIT
// The two places in which tensors lie, the device and the host beside it, and their books.
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// The books of one kind in both places.
struct Changes {
  explicit Changes(Kind kind) : on_device(kind), on_host(kind, Place::host) {}
  std::string figures() const { return on_device.figures() + ", " + on_host.figures(); }

  const Change on_device, on_host;
};

std::vector<Device> held_on() {
  std::vector<Device> devices;
  for (const auto& [kind, view] : Tensor::held) devices.push_back(view.device);
  return devices;
}
}  // namespace

TEST_CASE("what computes is the device, and beside it is the host") {
  CHECK(place_of(Device::cpu) == Place::device);
  CHECK(place_of(Device::cuda) == Place::device);
  CHECK(place_of(Device::host) == Place::host);
}

TEST_CASE("a tensor is in the books of the place where it lies, and goes from those") {
  const Changes changes(Kind::optimizer);
  const std::vector<Device> before = held_on();
  {
    const Tensor device(Device::cpu, Kind::optimizer, Dtype::fp32, 10);
    CHECK(changes.figures() == "40 40 40 40, 0 0 0 0");
    const Tensor host(Device::host, Kind::optimizer, Dtype::fp32, 100);
    CHECK(changes.figures() == "40 40 40 40, 400 400 400 400");
    CHECK(host.view().device == Device::host);
    fill(host.view(), 3);  // the host's cores can read and write it
    CHECK(host.view().as<float>()[99] == 3);
    CHECK(OnHost(host.view()).as<float>()[0] == 3);
    CHECK(held_on().size() == before.size() + 2);
  }
  CHECK(changes.figures() == "0 0 0 40, 0 0 0 400");
  CHECK(held_on() == before);
}

TEST_CASE("staging memory of a device lies on the host, and is zero") {
  const Changes changes(Kind::communication);
  const std::vector<Device> before = held_on();
  {
    Buffer first(Device::cpu, Kind::communication, 64, true, Memory::staging);
    CHECK(first.device() == Device::host);
    const Buffer moved = std::move(first);
    CHECK(changes.figures() == "0 0 0 0, 64 64 64 64");
    const Tensor staging(Device::cpu, Kind::communication, Dtype::bf16, 50, Memory::staging);
    CHECK(changes.figures() == "0 0 0 0, 164 164 164 164");
    CHECK(staging.view().device == Device::host);
    CHECK(held_on().back() == Device::host);
    const auto elements = staging.view().as<std::uint16_t>();
    CHECK(std::ranges::count(elements, 0) == 50);
  }
  CHECK(changes.figures() == "0 0 0 0, 0 0 0 164");
  CHECK(held_on() == before);
}

TEST_CASE("each place has its own peak of the total, and its own observer") {
  const std::int64_t device = ledger().reserved(), host = ledger(Place::host).reserved();
  for (const Place place : {Place::device, Place::host}) ledger(place).restart_peaks();
  const std::int64_t peak = ledger().peak_of_total(),
                     peak_on_host = ledger(Place::host).peak_of_total();
  std::string told;
  ledger().observe([&] { told += "device "; });
  ledger(Place::host).observe([&] { told += "host "; });
  { const Tensor tensor(Device::host, Kind::data, Dtype::fp32, 7); }
  { const Tensor tensor(Device::cpu, Kind::data, Dtype::fp32, 1); }
  for (const Place place : {Place::device, Place::host}) ledger(place).observe({});
  CHECK(told == "host host device device ");
  CHECK(ledger().peak_of_total() == peak + 4);
  CHECK(ledger(Place::host).peak_of_total() == peak_on_host + 28);
  CHECK(ledger().reserved() == device);
  CHECK(ledger(Place::host).reserved() == host);
}
}  // namespace zero::test
