// SPDX-License-Identifier: MIT
// A program on MPI ranks: its start, the agreement of all ranks before the first step, and its end.
#pragma once
#include <thread>

#include "run/train.hpp"

namespace zero {
/// Session throws it on all ranks, at one point of the program, so all can end MPI in good order.
struct Refusal : Error {
  using Error::Error;
};

/// MPI runs while a Session lives. An uncaught error ends the job: `rank r/N: what`, its exit code.
class Session : public Process {
 public:
  Session(int& argc, char**& argv);
  /// Waits for all ranks, then ends MPI. If a rank is lost, this throws, and because destructors
  /// may not throw that ends the job like any uncaught error: with its sentence and exit code.
  ~Session() override;

  /// Starts the watchdog, returns the choice. Throws Refusal on all ranks if programs or options
  /// differ, or are wrong, or ask for what the machine lacks; with code 0 if all have --help.
  Choice agree(const Command& command, const Card& card) override;

  /// If the task throws an Error on a rank, throws Refusal on all, naming the rank unless all did.
  void on_all_ranks(const std::function<void()>& task) override { on_all_ranks(task, true); }
  void agree_on_data(const std::string& description) override;
  std::unique_ptr<Communicator> communicator(const Options& options, const Choice& choice,
                                             Device& device, const Layout& layout) override;

  /// On rank 0 prints the refusal. Returns this rank's exit code.
  int refuse(const Refusal& refusal) const;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  void on_all_ranks(const std::function<void()>& task, bool names_rank);
  Choice choose_on_all_ranks(const Options& options);

  const std::string program_;  // the program's name; later who_fails names the rank
  int rank_ = 0, size_ = 1;
  int ranks_here_ = 1;  // on this machine
  int cores_here_ = 1;  // cores on which this machine's ranks may run
  int place_here_ = 0;  // number of this rank among this machine's ranks
  std::int64_t free_shared_;  // free bytes of /dev/shm on this machine, before MPI took any
  const std::unique_ptr<Device> host_ = make_cpu();  // everybody_ sends from its memory
  std::optional<Communicator> everybody_;  // for messages that are not part of a step
  std::jthread watching_;  // the watchdog
};
}  // namespace zero
