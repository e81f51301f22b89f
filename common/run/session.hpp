// SPDX-License-Identifier: MIT
// A program's life on MPI ranks: start, agreement before the first step, and one way to fail.
#pragma once
#include "run/train.hpp"

namespace zero {
/// What all ranks refuse together, at the same point of the program: all can leave in good order.
struct Refusal : Error {
  using Error::Error;
};

/// MPI while it lives. An uncaught error ends the job with `rank r/N: what` and its exit code.
class Session : public Process {
 public:
  /// MPI ends the job when it cannot start.
  Session(int& argc, char**& argv);
  ~Session() override;

  /// The choice, when all ranks run the same program with the same options and find what they ask
  /// for; from then on a job that stands still is ended (options.timeout). Else throws Refusal on
  /// all ranks; help asked for on all is a Refusal of code 0.
  Choice agree(const Command& command, const Card& card) override;

  /// If the task throws an Error on any rank all throw Refusal, naming it unless all did.
  void attempt(const std::function<void()>& task) override { attempt(task, true); }
  void agree_on_data(const std::string& description) override;
  std::unique_ptr<Communicator> communicator(const Options& options, const Choice& choice,
                                             Device& device, const Layout& layout) override;

  /// Prints the sentence once, from rank 0, and returns the exit code.
  int refuse(const Refusal& refusal) const;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  void attempt(const std::function<void()>& task, bool names_rank);
  Choice choose_together(const Options& options);

  const std::string program_ = who_fails;  // until this is one of several ranks
  int rank_ = 0, size_ = 1;
  int ranks_here_ = 1;  // on this machine
  int cores_here_ = 1;  // on which they may run
  int place_here_ = 0;  // this one's place among those
  std::int64_t free_shared_;  // bytes of /dev/shm on this machine, before MPI took any
  const std::unique_ptr<Device> host_ = make_cpu();  // whose memory the next one's messages are
  std::optional<Communicator> everybody_;  // for what is said before and beside steps
  std::jthread watching_;
};

/// A chapter's main on ranks. An error of one rank ends the job.
int train_on_ranks(int argc, char** argv, const Card& card, MakeTrainer& make);
template <class Trainer> int run_on_ranks(int argc, char** argv) {
  return train_on_ranks(argc, argv, Trainer::card, make_trainer<Trainer>);
}
}  // namespace zero
