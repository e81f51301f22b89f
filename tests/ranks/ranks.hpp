// SPDX-License-Identifier: MIT
// What tests on MPI ranks share: the ranks, a whole run, and its state gathered from all of them.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common.hpp"
#include "config.hpp"
#include "run/session.hpp"

namespace zero::test {

/// This process's session, and what the test was started with: its device is in use, and its
/// transport and way of adding are chosen. From ranks_main.cpp.
const Session& session();
const Options& options_of_test();

/// Makes the data of one of several ranks.
using MakeData = std::function<std::unique_ptr<Data>(int rank, int ranks)>;

/// A run's reports and its final state, by global element number.
struct Outcome {
  std::vector<Verdict> reports;
  std::vector<float> weights, momentum, variance;
};

/// Data in which one sample's first input is not finite.
class PoisonedData : public Data {
 public:
  PoisonedData(const Options& options, int rank, int ranks, std::uint64_t bad_sample)
      : Data(options, rank, ranks),
        inner_(make_data(options, rank, ranks)),
        rows_(options.batch),
        bad_(bad_sample) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    inner_->load(on, first, inputs, targets);
    const auto row = static_cast<std::int64_t>(bad_) - first;
    if (row < 0 || row >= rows_) return;
    on.divide(inputs.part(row * (inputs.size / rows_), 1), 0);
  }

 private:
  std::unique_ptr<Data> inner_;
  std::int64_t rows_;
  std::uint64_t bad_;
};

/// The dtypes that the chapter can be asked for and whose bits are promised: NCCL's own sum of fp16
/// may overflow before it is divided.
template <class Trainer>
std::vector<Dtype> dtypes_of() {
  if (!Trainer::chapter.mixed_precision) return {Dtype::fp32};
  if (options_of_test().reduce == Reduce::native) return {Dtype::fp32, Dtype::bf16};
  return {Dtype::fp32, Dtype::bf16, Dtype::fp16};
}

inline MakeData ordinary_data(const Options& options) {
  return [options](int rank, int ranks) { return make_data(options, rank, ranks); };
}

/// Sample number `bad_sample` of the run has an infinite input.
inline MakeData poisoned_data(const Options& options, std::uint64_t bad_sample) {
  return [=](int rank, int ranks) {
    return std::make_unique<PoisonedData>(options, rank, ranks, bad_sample);
  };
}

/// 01 takes no communicator; the others do.
template <class Trainer>
std::unique_ptr<Trainer> make_trainer(const Options& options, Communicator& comm) {
  if constexpr (std::is_constructible_v<Trainer, const Options&>) {
    return std::make_unique<Trainer>(options);
  } else {
    return std::make_unique<Trainer>(options, comm);
  }
}

/// The slices of one kind of state that this rank holds, put into its place in a vector of all
/// elements; the others' are fetched when nobody holds all.
template <class Trainer>
std::vector<float> whole_state(Trainer& trainer, Communicator& comm, View AdamSlice::*member) {
  const Layout& layout = trainer.layout();
  constexpr std::uint64_t held = std::uint64_t{1} << 32;
  std::vector<std::uint64_t> bits(layout.parameters());
  for (int l = 0; l < layout.layers(); ++l) {
    const AdamSlice slice = trainer.state(l);
    const OnHost host(slice.*member);
    for (std::int64_t i = 0; i < slice.weights.used; ++i) {
      const float value = host.as<float>()[i];
      bits[layout.layer_start(l) + slice.first + i] = held | std::bit_cast<std::uint32_t>(value);
    }
  }
  const std::vector<std::uint64_t> all = comm.gather(bits);
  std::vector<float> values(bits.size());
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (all[at] & held) {
      values[at % bits.size()] = std::bit_cast<float>(static_cast<std::uint32_t>(all[at]));
    }
  }
  return values;
}

template <class Trainer>
Outcome outcome_of(Trainer& trainer, Communicator& comm, std::vector<Verdict> reports) {
  trainer.synchronise();
  return {std::move(reports),
          whole_state(trainer, comm, &AdamSlice::weights),
          whole_state(trainer, comm, &AdamSlice::momentum),
          whole_state(trainer, comm, &AdamSlice::variance)};
}

/// A whole run of the chapter on all ranks of the session.
template <class Trainer>
Outcome run(const Options& options, const MakeData& make) {
  const auto comm = make_communicator(session(), options_of_test());
  const auto data = make(comm->rank, comm->size);  // outlives the trainer, whose tasks read it
  const auto trainer = make_trainer<Trainer>(options, *comm);
  std::vector<Verdict> reports;
  for (int step = 0; step < options.steps; ++step) reports.push_back(trainer->step(*data, step));
  return outcome_of(*trainer, *comm, std::move(reports));
}

}  // namespace zero::test
