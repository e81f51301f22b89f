// SPDX-License-Identifier: MIT
// The main function of a chapter that is one process, without MPI.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "memory/error.hpp"
#include "run/choice.hpp"
#include "run/command_line.hpp"
#include "run/failure.hpp"
#include "run/train.hpp"

namespace zero {
/// A process alone: what a Session does for ranks. What nobody catches ends it with one sentence
/// and the error's exit code.
class Alone {
 public:
  explicit Alone(const Chapter& chapter) {
    fail_fast(chapter.name, [](int code) { std::_Exit(code); });
  }

  /// Throws Error (usage, resources) when the device that is asked for cannot be had.
  Choice agree(const Command& command, const Chapter&) {
    watchdog_.emplace(std::chrono::seconds(command.options.timeout),
                      [](const std::string& what) { fail(Error(ExitCode::communication, what)); });
    const Choice choice = choose(command.options, {visible_gpus()});
    if (choice.device == Device::cuda) use_gpu(choice.gpu);
    return choice;
  }
  template <class Make> auto together(Make make) { return make(); }
  Communicator communicator(const Options&, const Choice&, const Layout&) { return {}; }

  int rank() const { return 0; }
  int size() const { return 1; }
  std::int64_t process_bytes_at_start() const { return process_bytes_at_start_; }

 private:
  const std::int64_t process_bytes_at_start_ = process_peak_bytes();
  std::optional<Watchdog> watchdog_;
};

template <class Trainer> int run_alone(int argc, char** argv) {
  const Command command = read_command(argc, argv, Trainer::chapter);
  if (const auto exit_code = answer_alone(command, Trainer::chapter)) return *exit_code;
  Alone alone(Trainer::chapter);
  return train<Trainer>(alone, command);
}
}  // namespace zero
