// SPDX-License-Identifier: MIT
// From a command line to options, and what can be answered without training.
#pragma once
#include <map>

#include "train/options.hpp"

namespace zero {
/// A command line as read: options to run with, or a text to print and leave with `status`.
struct Command {
  Options options;
  OptionValues values;  // all but those about planning: for the log, and to compare ranks
  std::size_t training = 0;  // so many of them, the first, say what is trained; the others how
  bool run = false;
  std::string text;  // help (status 0) or what is wrong with the command line (2)
  int status = 0;
};

/// Reads the command line; never throws for what a user can type, starts no MPI.
Command read_command(int argc, char** argv, const Card& card);

/// What notes/digests.json has for such a run on a CPU; empty: nothing.
std::string recorded_digest(const Command& command, const Card& card, int ranks);

/// What can be answered without the other ranks: --help, --plan, a bad command line. Prints it and
/// returns the exit code; nothing when the program should go on.
std::optional<int> answer_alone(const Command& command, const Card& card);

using Units = std::map<std::string, double>;
inline const Units byte_units{{"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                              {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

/// A number and a unit, as 80GB; nothing when the text is none, or not from least to most.
std::optional<double> quantity(const std::string& text, const Units& units, double least,
                               double most);
}  // namespace zero
