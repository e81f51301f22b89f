// SPDX-License-Identifier: MIT
// A program's life on MPI ranks: start, agreement before the first step, and one way to fail.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "memory/error.hpp"
#include "train/options.hpp"

namespace zero {

/// Every rank has it at the same point of the program, so all can leave in good order.
class Refusal : public Error {
 public:
  using Error::Error;
};

/// MPI from construction to destruction.
class Session {
 public:
  /// MPI ends the job when it cannot start.
  Session(int& argc, char**& argv);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The options, when every rank runs the same program, could read its command line and was given
  /// the same, and finds the device and the transport that it asks for: that device is then in use.
  /// Otherwise throws Refusal on all ranks; help asked for on all is a Refusal of code 0.
  Options agree(const Command& command, const Chapter& chapter);

  /// Runs `make` on every rank. When it throws an Error on any, throws Refusal on all.
  template <class Make>
  auto agree(Make make) {
    std::optional<decltype(make())> made;
    agree_all([&] { made.emplace(make()); });
    return std::move(*made);
  }

  /// Prints the sentence once, from rank 0, and returns the exit code.
  int refuse(const Refusal& refusal) const;
  /// Prints `rank r/N: what` and ends the whole job at once with the error's exit code.
  [[noreturn]] void abort(const std::exception& error) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// How many of the ranks have their tensors in the memory that this one's lie in.
  int sharing() const { return sharing_; }
  /// Physical memory of the process when MPI had started, in bytes.
  std::int64_t process_bytes_at_start() const { return process_bytes_at_start_; }

 private:
  void choose_together(Options& options);
  void check_same_device(Device mine) const;
  void agree_all(const std::function<void()>& attempt);
  void agree_all_equal(const std::vector<std::pair<std::string, std::string>>& mine);
  std::string broadcast(int root, std::string text) const;

  int rank_ = 0;
  int size_ = 1;
  int ranks_here_ = 1;  // on this machine
  int place_here_ = 0;  // this one's place among those
  int sharing_ = 1;
  std::int64_t process_bytes_at_start_ = 0;
};

/// Ranks that talk through options.comm. Calls come from one thread at a time. Throws Error
/// (communication) when they cannot.
std::unique_ptr<Communicator> make_communicator(const Session& session, const Options& options);

std::unique_ptr<Communicator> make_mpi_communicator(const Session& session);
/// One GPU a rank.
std::unique_ptr<Communicator> make_nccl_communicator(const Session& session, Reduce reduce);
/// False in a build without NCCL, where the function before throws.
bool nccl_is_built();

}  // namespace zero
