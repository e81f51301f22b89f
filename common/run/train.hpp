// SPDX-License-Identifier: MIT
// One training run, from the command line to the closing table: the same for every chapter.
#pragma once
#include "common.hpp"
#include "run/choice.hpp"
#include "run/command_line.hpp"
#include "run/failure.hpp"

namespace zero {
/// A chapter's trainer, whichever it is.
class AnyTrainer {
 public:
  virtual ~AnyTrainer() = default;
  virtual StepResult step(const Data& data, int number) = 0;
  virtual AdamState adam_state(int l) const = 0;
  virtual void synchronise() = 0;
};

template <class Trainer> class Erased : public AnyTrainer {
 public:
  explicit Erased(auto&... all) : trainer_(all...) {}
  StepResult step(const Data& data, int number) override { return trainer_.step(data, number); }
  AdamState adam_state(int l) const override { return trainer_.adam_state(l); }
  void synchronise() override { trainer_.synchronise(); }

 private:
  Trainer trainer_;
};

/// All that it is given must outlive it.
using MakeTrainer = std::unique_ptr<AnyTrainer>(const Options& options, Device& device,
                                                const Layout& layout, Communicator& comm);
template <class Trainer>
std::unique_ptr<AnyTrainer> make_trainer(const Options& options, Device& device,
                                         const Layout& layout, Communicator& comm) {
  if constexpr (Trainer::card.ranks) {
    return std::make_unique<Erased<Trainer>>(options, device, layout, comm);
  } else {
    return std::make_unique<Erased<Trainer>>(options, device, layout);
  }
}

/// What a program agrees on with the others of its run, if there are any.
class Process {
 public:
  virtual ~Process() = default;
  /// Throws Error (usage, resources) when what is asked for cannot be had, or is not the same.
  virtual Choice agree(const Command& command, const Card& card) = 0;
  /// Runs the task on every rank. Throws an Error on all of them when it throws one on any.
  virtual void attempt(const std::function<void()>& task) = 0;
  /// Throws Error (data) on all ranks when one reads other data than rank 0, by its description.
  virtual void agree_on_data(const std::string& description) = 0;
  /// The ranks' communicator, over choice.comm.
  virtual std::unique_ptr<Communicator> communicator(const Options& options, const Choice& choice,
                                                     Device& device, const Layout& layout) = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// What `make` makes, on every rank.
  template <class Make> auto together(Make make) {
    std::optional<decltype(make())> made;
    attempt([&] { made.emplace(make()); });
    return std::move(*made);
  }
};

/// Trains as the command says, and returns the exit code. make: makes the chapter's trainer.
int train(Process& process, const Command& command, const Card& card, MakeTrainer& make);

/// The main function of a chapter that is one process.
int train_alone(int argc, char** argv, const Card& card, MakeTrainer& make);
template <class Trainer> int run_alone(int argc, char** argv) {
  return train_alone(argc, argv, Trainer::card, make_trainer<Trainer>);
}
}  // namespace zero
