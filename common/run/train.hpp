// SPDX-License-Identifier: MIT
// One training run, from the command line to the closing table: the same for every chapter.
#pragma once
#include "common.hpp"
#include "run/command_line.hpp"

namespace zero {
/// A chapter's trainer behind virtual functions, so that train() is compiled once.
class AnyTrainer {
 public:
  virtual ~AnyTrainer() = default;
  virtual StepResult step(const Data& data, int number) = 0;  // number: from 0
  virtual AdamState adam_state(int l) = 0;
  virtual void synchronise() = 0;
};

template <class Trainer> class Erased : public AnyTrainer {
 public:
  explicit Erased(auto&... all) : trainer_(all...) {}
  StepResult step(const Data& data, int number) override { return trainer_.step(data, number); }
  AdamState adam_state(int l) override { return trainer_.adam_state(l); }
  void synchronise() override { trainer_.synchronise(); }

 private:
  Trainer trainer_;
};

/// Makes a chapter's trainer. All arguments must outlive the trainer.
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

/// What this process does with the other ranks of its run; there may be none.
class Process {
 public:
  virtual ~Process() = default;
  /// Makes the Choice. Throws Error if ranks' options differ, or ask for what the machine lacks.
  virtual Choice agree(const Command& command, const Card& card) = 0;
  /// Runs the task on every rank. If it throws an Error on any rank, throws an Error on all.
  virtual void on_all_ranks(const std::function<void()>& task) = 0;
  /// Throws Error (data) on all ranks if a rank's Data::description() is not that of rank 0.
  virtual void agree_on_data(const std::string& description) = 0;
  virtual std::unique_ptr<Communicator> communicator(const Options& options, const Choice& choice,
                                                     Device& device, const Layout& layout) = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Returns the result of make(), which is called like on_all_ranks()'s task.
  template <class Make> auto make_on_all_ranks(Make make) {
    std::optional<decltype(make())> made;
    on_all_ranks([&] { made.emplace(make()); });
    return std::move(*made);
  }
};

/// Trains as the command says. Returns the exit code.
int train(Process& process, const Command& command, const Card& card, MakeTrainer& make);

/// The main function of a chapter that runs on MPI ranks; defined in session.cpp. An error of one
/// rank ends the job. Returns the exit code.
int train_on_ranks(int argc, char** argv, const Card& card, MakeTrainer& make);
template <class Trainer> int run_on_ranks(int argc, char** argv) {
  return train_on_ranks(argc, argv, Trainer::card, make_trainer<Trainer>);
}

/// The main function of a chapter that runs as one process. Returns the exit code.
int train_alone(int argc, char** argv, const Card& card, MakeTrainer& make);
template <class Trainer> int run_alone(int argc, char** argv) {
  return train_alone(argc, argv, Trainer::card, make_trainer<Trainer>);
}
}  // namespace zero
