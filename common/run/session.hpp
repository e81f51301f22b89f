// SPDX-License-Identifier: MIT
// A program's life on MPI ranks: start, agreement before the first step, and one way to fail.
#pragma once
#include "run/train.hpp"

namespace zero {
/// What all ranks refuse together, at the same point of the program: all can leave in good order.
struct Refusal : Error {
  using Error::Error;
};

/// MPI from construction to destruction. What nobody catches ends the whole job at once, with
/// `rank r/N: what` and the error's exit code.
class Session {
 public:
  /// MPI ends the job when it cannot start.
  Session(int& argc, char**& argv);
  ~Session();

  /// What is chosen, when every rank runs the same program, could read its command line and was
  /// given the same, and finds the device and the transport that it asks for. From then on, until
  /// the session ends, a job that stands still is ended (options.timeout). Otherwise throws Refusal
  /// on all ranks; help asked for on all is a Refusal of code 0.
  Choice agree(const Command& command, const Card& card);

  /// Runs `make` on every rank. When it throws an Error on any, throws Refusal on all, which names
  /// the rank where others could have gone on.
  template <class Make> auto together(Make make) {
    std::optional<decltype(make())> made;
    attempt([&] { made.emplace(make()); }, true);
    return std::move(*made);
  }

  /// Throws Refusal (data) on all ranks when one reads other data than rank 0, by its description.
  void agree_on_data(const std::string& description);

  /// Ranks that talk through choice.comm. One at a time: all have the same tag.
  Communicator communicator(const Options& options, const Choice& choice, Device& device,
                            const Layout& layout);

  /// Prints the sentence once, from rank 0, and returns the exit code.
  int refuse(const Refusal& refusal) const;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  void attempt(const std::function<void()>& task, bool names_rank = false);
  Choice choose_together(const Options& options);

  int rank_ = 0, size_ = 1;
  int ranks_here_ = 1;  // on this machine
  int place_here_ = 0;  // this one's place among those
  const std::unique_ptr<Device> host_ = make_cpu();  // whose memory the next one's messages are
  std::optional<Communicator> everybody_;  // for what is said before and beside steps
  std::jthread watching_;
};

/// The main function of a chapter on ranks; others: cards that advice may name. Returns the exit
/// code of what all ranks agree on; anything else that goes wrong ends the job.
template <class Trainer> int run_on_ranks(int argc, char** argv, Cards others) {
  fail_fast(Trainer::card.name, std::_Exit);  // until it is one of several ranks
  const Command command = read_command(argc, argv, Trainer::card);
  if (const auto exit_code = answer_alone(command, Trainer::card, others)) return *exit_code;
  Session session(argc, argv);
  try {
    return train<Trainer>(session, command, others);
  } catch (const Refusal& refusal) {
    return session.refuse(refusal);
  }
}
}  // namespace zero
