// SPDX-License-Identifier: MIT
// What tests on MPI ranks share: the ranks, a whole run, and its state gathered from all of them.
#pragma once
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common.hpp"
#include "config.hpp"
#include "run/session.hpp"

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
  Options options;
  options.task = Task::mlp;
  options.width = width;
  options.layers = layers;
  options.dtype = dtype;
  return options;
}

/// The dtypes that the chapter can be asked for and whose bits are promised: NCCL's own sum of fp16
/// may overflow before it is divided.
template <class Trainer> std::vector<Dtype> dtypes_of() {
  if (!Trainer::chapter.mixed_precision) return {Dtype::fp32};
  if (ranks().reduce == Reduce::native) return {Dtype::fp32, Dtype::bf16};
  return {Dtype::fp32, Dtype::bf16, Dtype::fp16};
}

/// Makes the data of one of several ranks.
using MakeData = std::function<std::unique_ptr<Data>(int rank, int ranks)>;

inline MakeData ordinary_data(const Options& options) {
  return [=](int rank, int ranks) { return make_data(options, device(), rank, ranks); };
}

/// Data in which one sample's first input is not finite.
class PoisonedData : public Data {
 public:
  PoisonedData(const Options& options, int rank, int ranks, std::int64_t bad_sample)
      : Data(options, rank, ranks),
        inner_(make_data(options, device(), rank, ranks)),
        rows_(options.batch),
        bad_(bad_sample) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    inner_->load(on, first, inputs, targets);
    const std::int64_t row = bad_ - first;
    if (row < 0 || row >= rows_) return;
    on.divide(inputs.part(row * (inputs.size / rows_), 1), 0);
  }

 private:
  std::unique_ptr<Data> inner_;
  std::int64_t rows_;
  std::int64_t bad_;
};

inline MakeData poisoned_data(const Options& options, std::int64_t bad_sample) {
  return [=](int rank, int ranks) {
    return std::make_unique<PoisonedData>(options, rank, ranks, bad_sample);
  };
}

/// This rank's part of a run, as the chapters' main function makes it.
template <class Trainer> struct Part {
  Part(const Options& options, const MakeData& make)
      : layout(architecture(options).sizes(), ranks().rank, ranks().size),
        data(make(ranks().rank, ranks().size)),
        comm(ranks().communicator(options, layout)),
        trainer([&] {
          if constexpr (Trainer::chapter.ranks) {
            return Trainer(options, device(), layout, comm);
          } else {
            return Trainer(options, device(), layout);
          }
        }()) {}

  Verdict step(int step) {
    current_step = step + 1;
    return trainer.step(*data, step);
  }

  const Layout layout;
  const std::unique_ptr<Data> data;
  Communicator comm;
  Trainer trainer;
};

/// The slices of one kind of state that this rank holds, put into its place in a vector of all
/// elements; the others' are fetched when nobody holds all.
template <class Trainer>
std::vector<float> whole_state(Part<Trainer>& part, View AdamSlice::*member) {
  constexpr std::uint64_t held = std::uint64_t{1} << 32;
  std::vector<std::uint64_t> bits(part.layout.parameters());
  for (int l = 0; l < part.layout.layers(); ++l) {
    const View mine = part.trainer.state(l).*member;
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

/// A whole run of the chapter on all ranks.
template <class Trainer> Outcome run(const Options& options, const MakeData& make) {
  Part<Trainer> part(options, make);
  Outcome outcome;
  for (int step = 0; step < options.steps; ++step) outcome.verdicts.push_back(part.step(step));
  part.trainer.synchronise();
  outcome.weights = whole_state(part, &AdamSlice::weights);
  outcome.momentum = whole_state(part, &AdamSlice::momentum);
  outcome.variance = whole_state(part, &AdamSlice::variance);
  return outcome;
}
}  // namespace zero::test
