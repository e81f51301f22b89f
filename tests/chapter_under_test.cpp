// SPDX-License-Identifier: MIT
#include "tests/chapter_under_test.hpp"

#include "trainer.hpp"

namespace zero::test {
namespace {
template <class Trainer> struct Adapter : AnyTrainer {
  explicit Adapter(auto&... arguments) : trainer(arguments...) {}
  StepResult step(const Data& data, int number) override { return trainer.step(data, number); }
  AdamState adam_state(int l) const override { return trainer.adam_state(l); }
  void synchronise() override { trainer.synchronise(); }

  Trainer trainer;
};

/// A template, so that only one of the trainer's two constructors needs to be there.
template <class Trainer> std::unique_ptr<AnyTrainer> make(Communicator& comm, auto&... others) {
  if constexpr (Trainer::card.ranks) {
    return std::make_unique<Adapter<Trainer>>(others..., comm);
  } else {
    return std::make_unique<Adapter<Trainer>>(others...);
  }
}
}  // namespace

const Card& chapter = Trainer::card;

std::unique_ptr<AnyTrainer> make_trainer(const Options& options, Device& device,
                                         const Layout& layout, Communicator& comm) {
  return make<Trainer>(comm, options, device, layout);
}
}  // namespace zero::test
