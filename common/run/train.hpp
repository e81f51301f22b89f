// SPDX-License-Identifier: MIT
// One training run, from the command line to the closing table: the same for every chapter.
#pragma once
#include "common.hpp"
#include "report/report.hpp"
#include "run/command_line.hpp"

namespace zero {
/// `process` is a Session or Alone: it agrees with the others, if there are any.
template <class Trainer, class Process> int train(Process&& process, const Command& command) {
  const std::int64_t bytes_at_start = process_peak_bytes();
  const Chapter& chapter = Trainer::chapter;
  const Options& options = command.options;
  const Choice choice = process.agree(command, chapter);
  const Layout layout(architecture(options).sizes(), process.rank(), process.size());
  process.together([&] { return check_memory(chapter, options, choice, layout); });
  const auto data = process.together(
      [&] { return make_data(options, choice.device, process.rank(), process.size()); });
  Communicator comm = process.communicator(options, choice, layout);
  Trainer trainer = [&] {
    if constexpr (chapter.ranks) {
      return Trainer(options, choice.device, layout, comm);
    } else {
      return Trainer(options, choice.device, layout);
    }
  }();
  trainer.synchronise();  // the first step's time is its own
  const Run run{chapter, options, command.values, choice, layout, bytes_at_start};
  const auto report = process.together([&] { return std::make_unique<Report>(run, comm); });
  for (int step = 0; step < options.steps; ++step) {
    current_step = step + 1;
    report->add(trainer.step(*data, step));
  }
  report->finish(layer_digests(trainer, layout));
  return 0;
}
}  // namespace zero
