// SPDX-License-Identifier: MIT
// What tests on ranks share: the ranks, one rank's part of a run, and comparison with the replay.
#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>

#include "common.hpp"
#include "config.hpp"
#include "run/session.hpp"
#include "tests/chapter_under_test.hpp"

namespace zero::test {
/// This rank, its device, and how the command line of the test said that ranks communicate.
struct Ranks {
  /// Makes a run's communicator. Keep one at a time: a Device can check the peers of one only.
  std::unique_ptr<Communicator> communicator(Options options, const Layout& layout) const {
    options.reduce = reduce;
    return session.communicator(options, choice, device, layout);
  }

  Session& session;
  int rank, size;
  Choice choice;  // device and transport
  Reduce reduce;
  Device& device;
};
const Ranks& ranks();  // from ranks_main.cpp
inline Device& device() { return ranks().device; }
inline bool on_gpus() { return device().type == DeviceType::cuda; }

inline Options mlp_options(int width, int layers, Dtype dtype = Dtype::fp32) {
  return {.task = Task::mlp, .width = width, .layers = layers, .dtype = dtype};
}
/// Returns `o` with a small Llama: 5 tokens per sequence, 6 elements per head.
inline Options llama_options(Options o) {
  o.task = Task::llama, o.data = DEFAULT_CORPUS, o.batch = 2, o.layers = 2;
  o.width = 24, o.heads = 4, o.kv_heads = 2, o.hidden = 20, o.sequence = 5;
  return o;
}
inline Layout layout_here(const Options& options) {
  return layout_of(options, ranks().rank, ranks().size);
}

/// The chapter's dtypes in which a run must have the replay's bits. With --reduce native not fp16,
/// because NCCL's sum may overflow before it is divided.
inline std::vector<Dtype> dtypes_of_chapter() {
  if (!chapter.mixed_precision) return {Dtype::fp32};
  if (ranks().reduce == Reduce::native) return {Dtype::fp32, Dtype::bf16};
  return {Dtype::fp32, Dtype::bf16, Dtype::fp16};
}

/// TestData calls it when it has loaded the samples from `first` on. It may change their inputs.
using Tamper = std::function<void(Kernels& on, std::int64_t first, View inputs)>;

/// A Tamper that divides the first input of sample `bad_sample` by zero. With -1 it changes none.
inline Tamper poison(const Options& options, std::int64_t bad_sample) {
  return [=, batch = options.batch](Kernels& on, std::int64_t first, View inputs) {
    const std::int64_t row = bad_sample - first, width = inputs.size / batch;
    if (0 <= row && row < batch) on.divide(inputs.part(row * width, 1), 0);
  };
}

/// One rank's data, changed by a Tamper.
struct TestData : Data {
  TestData(const Options& options, Tamper tamper, int rank, int ranks)
      : Data(options, rank, ranks),
        good(make_data(options, device(), rank, ranks)),
        tamper(std::move(tamper)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    good->load(on, first, inputs, targets);
    if (tamper) tamper(on, first, inputs);
  }

  const std::unique_ptr<Data> good;
  const Tamper tamper;
};

/// This rank's part of a run, made as in a chapter's main function.
struct Part {
  explicit Part(const Options& options, const Tamper& tamper = {})
      : options(options), data(options, tamper, ranks().rank, ranks().size) {}

  StepResult step(int step) {
    here.step = step + 1;
    return trainer->step(data, step);
  }

  const Options options;
  const Layout layout = layout_here(options);
  const TestData data;
  const std::unique_ptr<Communicator> owned = ranks().communicator(options, layout);
  Communicator& comm = *owned;
  const std::unique_ptr<AnyTrainer> trainer = make_trainer(options, device(), layout, comm);
};

/// The results of each step. skipped: 1 if the step was skipped, else 0.
struct Said {
  std::vector<float> losses, norms, skipped;
};

/// Checks that the chapter's run has the bits of the replay, in its results and in each rank's
/// state, at every prefetch up to most_prefetch that the chapter takes. Returns the replay's
/// results.
Said check_against_replay(Options options, const Tamper& tamper = {}, int most_prefetch = 2);
/// Checks the same in four steps, and that only the third is skipped: its last sample is poisoned.
void check_third_step_skipped(const Options& options, int most_prefetch = 2);

/// Checks for equal bits. A failure names the first number that differs, counted from `first`.
inline void check_same_bits(const std::vector<float>& ours, const std::vector<float>& expected,
                            const char* what, std::int64_t first = 0) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  REQUIRE(ours.size() == expected.size());
  const auto [a, b] = std::ranges::mismatch(ours, expected, {}, bits, bits);
  if (a == ours.end()) return;
  FAIL_CHECK(fmt::format("{} number {}: {} ({:08x}), expected {} ({:08x})", what,
                         first + (a - ours.begin()), *a, bits(*a), *b, bits(*b)));
}
}  // namespace zero::test
