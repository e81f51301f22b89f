// SPDX-License-Identifier: MIT
// A card's slots, predictions of the largest models, and refusals of runs that need too much
// memory. Predictions are compared with runs in tests/ranks/accounts_test.cpp.
#include "report/prediction.hpp"

#include "config.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
Prediction on_cpu(const std::string& number, const Options& options, int ranks) {
  return predict(card(number), options, DeviceType::cpu, layout_of(options, 0, ranks));
}
}  // namespace

TEST_CASE("a card has room for as many whole layers as it says, and for no more than a step uses") {
  // Chapter, kind, --prefetch, layers, micro-batches; the slots: whole layers that have room.
  const std::tuple<const char*, Kind, int, int, int, int> table[] = {
      {"04", Kind::parameters, 2, 8, 1, 0}, {"05", Kind::gradients, 2, 8, 1, 1},
      {"06", Kind::parameters, 0, 8, 1, 1}, {"06", Kind::parameters, 2, 8, 1, 3},
      {"06", Kind::parameters, 2, 1, 1, 2},  // forward and backward: 2 uses a step
      {"06", Kind::parameters, 2, 1, 2, 3}, {"07", Kind::gradients, 0, 8, 1, 2},
      {"07", Kind::gradients, 2, 1, 1, 1},  {"07", Kind::gradients, 2, 1, 2, 2}};
  for (const auto& [number, kind, prefetch, layers, micro_batches, slots] : table) {
    CHECK(card(number).slots(kind, prefetch, layers, micro_batches) == slots);
  }
}

TEST_CASE("the largest sizes that can be asked for do not overflow") {
  constexpr int most = 1 << 16;
  Options options{.task = Task::mlp, .width = most, .layers = 1 << 12, .dtype = Dtype::bf16};
  options.batch = options.accumulate = most;
  const Prediction plan = on_cpu("06", options, 1 << 12);
  const auto exact = static_cast<long double>(plan.padded);
  const auto& bytes = plan.bytes[Place::device];
  const Prediction::Traffic traffic = plan.traffic({});
  CHECK(bytes[Kind::optimizer].resident == 12 * (plan.padded >> 12));
  CHECK(bytes[Kind::activations].peak > 0);
  CHECK(traffic.sent[Phase::backward] == static_cast<std::int64_t>(exact * 131072 * 4095 / 4096));
  CHECK(traffic.padding >= 0);
}

TEST_CASE("a run that needs one byte more than it may take is refused with both numbers") {
  const Options options{.task = Task::mlp, .width = 256, .layers = 8, .dtype = Dtype::bf16};
  const Prediction plan = on_cpu("07", options, 1);
  const auto peak = &Prediction::Bytes::peak;
  const std::int64_t device = plan.sum(peak), host = plan.sum(peak, Place::host);
  const auto check = [](Options o, std::int64_t allowed, std::int64_t share) {
    o.device_memory = allowed;
    const auto sharing = static_cast<int>(cpu().available() / share);
    return check_memory(card("07"), o, {.sharing = sharing}, cpu(), layout_of(o, 0, 1));
  };
  const std::int64_t plenty = 2 * (device + host);
  CHECK(check(options, device, plenty) == device);
  const std::string advice = "use another chapter, fewer or smaller layers or batches, or more ";
  check_refused(
      ExitCode::resources,
      {fmt::format("each rank needs {} bytes of device memory, --device-memory allows {}: "
                   "{}ranks",
                   grouped(device), grouped(device - 1), advice)},
      [&] { check(options, device - 1, plenty); });
  // On the CPU what a rank takes on device and host together comes from the machine's memory.
  check_refused(
      ExitCode::resources,
      {fmt::format("each rank needs {} bytes, ", grouped(device + host)), advice + "machines"},
      [&] { check(options, 0, device + host / 2); });
  const Options data{.data = DEFAULT_CORPUS, .batch = 1, .width = 8, .layers = 1};
  check_refused(ExitCode::resources, {"use a smaller --data or --batch"},
                [&] { check(data, 1, plenty); });
}
}  // namespace zero::test
