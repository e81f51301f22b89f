// SPDX-License-Identifier: MIT
// From a command line to options, and what can be answered without training.
#pragma once
#include <optional>

#include "train/options.hpp"

namespace zero {

/// Reads the command line; never throws for what a user can type, starts no MPI.
Command read_command(int argc, char** argv, const Chapter& chapter);

/// What can be answered without the other ranks: --help, --plan, a bad command line. Prints it and
/// returns the exit code; nothing when the program should go on.
std::optional<int> answer_alone(const Command& command, const Chapter& chapter);

}  // namespace zero
