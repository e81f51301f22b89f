// SPDX-License-Identifier: MIT
// From a command line to options, and what can be answered without training.
#pragma once
#include <optional>

#include "train/options.hpp"

namespace zero {
/// A command line as read: options to run with, or a text to print and leave with `status`.
struct Command {
  Options options;
  OptionValues values;  // of all options but --plan and --ranks: for the log, and to compare ranks
  bool run = false;
  std::string text;  // help (status 0) or what is wrong with the command line (2)
  int status = 0;
};

/// Reads the command line. Never throws for what a user can type, and starts no MPI.
Command read_command(int argc, char** argv, const Card& card);

/// Answers --help, --plan, a bad command line, unless there are other ranks: then Session does.
/// Prints the answer and returns the exit code; returns nothing if the program should go on.
std::optional<int> answer_alone(const Command& command, const Card& card);
}  // namespace zero
