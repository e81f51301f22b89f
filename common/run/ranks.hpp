// SPDX-License-Identifier: MIT
// The main function of a chapter on ranks.
#pragma once
#include "run/command_line.hpp"
#include "run/session.hpp"
#include "run/train.hpp"

namespace zero {

/// Returns the exit code of what all ranks agree on; anything else that goes wrong ends the job.
template <class Trainer> int run_on_ranks(int argc, char** argv) {
  const Command command = read_command(argc, argv, Trainer::chapter);
  if (const auto exit_code = answer_alone(command, Trainer::chapter)) return *exit_code;
  Session session(argc, argv);
  try {
    return train<Trainer>(session, command);
  } catch (const Refusal& refusal) {
    return session.refuse(refusal);
  }
}

}  // namespace zero
