// SPDX-License-Identifier: MIT
// Of a run on a GPU: what its ranks take of the GPU's memory, and what of the host's.
#include "report/prediction.hpp"
#include "tests/unit/checks.hpp"
#include "train/mlp.hpp"

namespace zero::test {
TEST_CASE("a GPU's memory and its host's are two limits") {
  const Options options{.task = Task::mlp, .width = 512, .layers = 16, .dtype = Dtype::bf16};
  const Layout layout(architecture(options).sizes(), 0, 1);
  const auto cards = chapters_on_ranks();
  const Chapter &window = *cards[cards.size() - 2], &offload = *cards.back();
  const Prediction plan = predict(offload, options, Device::cuda, layout);
  const std::int64_t on_host = plan.sum(&Prediction::Bytes::peak, Place::host);
  const std::int64_t needed = plan.sum(&Prediction::Bytes::peak);
  const auto check = [&](const Chapter& chapter, int sharing, int sharing_host) {
    const Choice choice{.device = Device::cuda, .sharing = sharing, .sharing_host = sharing_host};
    return check_memory(chapter, options, choice, layout);
  };
  const auto many_on = [](Device device, std::int64_t bytes) {
    return static_cast<int>(2 * memory_of(device).available() / bytes);
  };
  const int on_machine = many_on(Device::cpu, on_host), on_gpu = many_on(Device::cuda, needed);
  CHECK(check(offload, 1, 1) == needed);
  check_refused(ExitCode::resources,
                {fmt::format("each rank needs {} bytes of the host's memory, {} on this machine "
                             "share ",
                             grouped(on_host), on_machine),
                 "available: 03_mixed_precision takes none of it"},
                [&] { check(offload, 1, on_machine); });
  check(window, 1, on_machine);  // takes none of it
  check_refused(
      ExitCode::resources,
      {fmt::format("each rank needs {} bytes, {} on this GPU share ", grouped(needed), on_gpu),
       "or more GPUs"},
      [&] { check(offload, on_gpu, 1); });
}
}  // namespace zero::test
