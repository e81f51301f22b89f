// SPDX-License-Identifier: MIT
// What tests on MPI ranks share: the ranks, a whole run, and its state gathered from all of them.
#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>

#include "common.hpp"
#include "config.hpp"
#include "run/session.hpp"
#include "tests/chapter_under_test.hpp"

namespace zero::test {
/// This process among the test's ranks, and what the test was started with: their device is in use.
struct Ranks {
  /// For runs of those options and layers.
  Communicator communicator(Options options, const Layout& layout) const {
    options.reduce = reduce;
    return session.communicator(options, choice, layout);
  }

  Session& session;
  int rank, size;
  Choice choice;  // device and transport
  Reduce reduce;
};
const Ranks& ranks();  // from ranks_main.cpp
inline Device device() { return ranks().choice.device; }

/// Small and quick: a stack of `layers` layers `width` wide.
inline Options mlp_options(int width, int layers, Dtype dtype = Dtype::fp32) {
  return {.task = Task::mlp, .width = width, .layers = layers, .dtype = dtype};
}

/// The dtypes that the chapter can be asked for and whose bits are promised: NCCL's own sum of fp16
/// may overflow before it is divided.
inline std::vector<Dtype> dtypes_of_chapter() {
  if (!chapter.mixed_precision) return {Dtype::fp32};
  if (ranks().reduce == Reduce::native) return {Dtype::fp32, Dtype::bf16};
  return {Dtype::fp32, Dtype::bf16, Dtype::fp16};
}

using MakeData = std::function<std::unique_ptr<Data>(int rank, int ranks)>;

inline MakeData ordinary_data(const Options& options) {
  return [=](int rank, int ranks) { return make_data(options, device(), rank, ranks); };
}

/// Data to which something happens when it has been loaded.
struct TamperedData : Data {
  using Tamper = std::function<void(Kernels& on, std::int64_t first, View inputs)>;
  TamperedData(std::unique_ptr<Data> good, Tamper tamper)
      : Data(*good), good(std::move(good)), tamper(std::move(tamper)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    good->load(on, first, inputs, targets);
    tamper(on, first, inputs);
  }

  const std::unique_ptr<Data> good;
  const Tamper tamper;
};

/// In which the first input of that sample is not finite.
inline MakeData poisoned_data(const Options& options, std::int64_t bad_sample) {
  const auto poison = [=](Kernels& on, std::int64_t first, View inputs) {
    const std::int64_t row = bad_sample - first, width = inputs.size / options.batch;
    if (0 <= row && row < options.batch) on.divide(inputs.part(row * width, 1), 0);
  };
  return [=, make = ordinary_data(options)](int rank, int ranks) {
    return std::make_unique<TamperedData>(make(rank, ranks), poison);
  };
}

/// This rank's part of a run, as the chapters' main function makes it.
struct Part {
  Part(const Options& options, const MakeData& make)
      : layout(architecture(options).sizes(), ranks().rank, ranks().size),
        data(make(ranks().rank, ranks().size)),
        comm(ranks().communicator(options, layout)),
        trainer(make_trainer(options, device(), layout, comm)) {}

  Verdict step(int step) {
    current_step = step + 1;
    return trainer->step(*data, step);
  }

  const Layout layout;
  const std::unique_ptr<Data> data;
  Communicator comm;
  const std::unique_ptr<AnyTrainer> trainer;
};

/// The slices of one kind of state that this rank holds, put into its place in a vector of all
/// elements; the others' are fetched when nobody holds all.
inline std::vector<float> whole_state(Part& part, View AdamSlice::*member) {
  constexpr std::uint64_t held = std::uint64_t{1} << 32;
  std::vector<std::uint64_t> bits(part.layout.parameters());
  for (int l = 0; l < part.layout.layers(); ++l) {
    const View mine = part.trainer->state(l).*member;
    const OnHost host(mine);
    for (std::int64_t i = 0; i < mine.used; ++i) {
      bits[part.layout.layer_start(l) + mine.start + i] =
          held | std::bit_cast<std::uint32_t>(host.as<float>()[i]);
    }
  }
  const std::vector<std::uint64_t> all = part.comm.gather(bits);
  std::vector<float> values(bits.size());
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (all[at] & held) {
      values[at % bits.size()] = std::bit_cast<float>(static_cast<std::uint32_t>(all[at]));
    }
  }
  return values;
}

/// A run's verdicts and its final state, by global element number.
struct Outcome {
  std::vector<Verdict> verdicts;
  std::vector<float> weights, momentum, variance;
};

inline Outcome run(const Options& options, const MakeData& make) {
  Part part(options, make);
  std::vector<Verdict> verdicts;
  for (int step = 0; step < options.steps; ++step) verdicts.push_back(part.step(step));
  part.trainer->synchronise();
  const auto whole = [&](View AdamSlice::*member) { return whole_state(part, member); };
  return {verdicts, whole(&AdamSlice::weights), whole(&AdamSlice::momentum),
          whole(&AdamSlice::variance)};
}

/// The chapter's run, on as many ranks as the test has, from replay.cpp.
Outcome replay(const Options& options, const MakeData& make);

/// Every verdict and every number of the state, to the last bit.
void check_same_run(const Outcome& ours, const Outcome& expected);

/// Of a difference the first number is told: elements are counted from 0, steps from 1.
inline void check_same_bits(const std::vector<float>& ours, const std::vector<float>& expected,
                            const char* what, int first = 0) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  REQUIRE(ours.size() == expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (bits(ours[i]) == bits(expected[i])) continue;
    FAIL_CHECK(fmt::format("{} number {}: {} ({:08x}), expected {} ({:08x})", what, first + i,
                           ours[i], bits(ours[i]), expected[i], bits(expected[i])));
    return;  // the first difference says it
  }
}
}  // namespace zero::test
