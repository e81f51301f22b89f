// SPDX-License-Identifier: MIT
// The main function of a chapter that is one process, without MPI.
#pragma once
#include "run/choice.hpp"
#include "run/train.hpp"

namespace zero {
/// A process alone: what a Session does for ranks.
struct Alone {
  /// Throws Error (usage, resources) when the device that is asked for cannot be had.
  Choice agree(const Command& command, const Chapter&) const {
    const Choice choice = choose(command.options, {visible_gpus()});
    if (choice.device == Device::cuda) use_gpu(choice.gpu);
    return choice;
  }
  template <class Make> auto together(Make make) const { return make(); }
  void agree_on_data(const std::string&) const {}
  Communicator communicator(const Options&, const Choice&, const Layout&) const { return {}; }
  int rank() const { return 0; }
  int size() const { return 1; }
};

template <class Trainer> int run_alone(int argc, char** argv) {
  fail_fast(Trainer::chapter.name, std::_Exit);
  const Command command = read_command(argc, argv, Trainer::chapter);
  if (const auto exit_code = answer_alone(command, Trainer::chapter)) return *exit_code;
  const Watchdog watchdog(std::chrono::seconds(command.options.timeout), fail_waiting);
  return train<Trainer>(Alone(), command);
}
}  // namespace zero
