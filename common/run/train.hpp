// SPDX-License-Identifier: MIT
// One training run, from the command line to the closing table: the same for every chapter.
#pragma once
#include "common.hpp"
#include "report/report.hpp"
#include "run/command_line.hpp"

namespace zero {
/// `process` is a Session or Alone: it agrees with the others, if there are any.
template <class Trainer, class Process> int train(Process&& process, const Command& command) {
  const Chapter& chapter = Trainer::chapter;
  const Options& options = command.options;
  const Choice choice = process.agree(command, chapter);
  bus().gb_per_s = options.bus;
  const Footprint before_the_run = footprint(choice.device);
  const Layout layout = layout_of(options, process.rank(), process.size());
  process.together([&] { return check_memory(chapter, options, choice, layout); });
  const auto data = process.together(
      [&] { return make_data(options, choice.device, process.rank(), process.size()); });
  process.agree_on_data(data->description());
  // A GPU's moments take events of its own, and a step of very many layers much memory, so there
  // only whoever asks for times pays for them.
  const bool traced = !options.trace.empty();
  const bool asked =
      traced || options.narrate > 0 || Link{options.link, options.latency}.modelled();
  const bool cheap = choice.device == Device::cpu && layout.layers() * options.accumulate <= 4096;
  Stream::one_after_the_other = options.narrate > 0;
  Recorder recorder(asked || cheap, traced ? Recorder::traced_steps : 2, options.narrate > 0);
  Communicator comm = process.communicator(options, choice, layout);
  const Footprint with_messages = footprint(choice.device);
  Trainer trainer = [&] {
    if constexpr (chapter.ranks) {
      return Trainer(options, choice.device, layout, comm);
    } else {
      return Trainer(options, choice.device, layout);
    }
  }();
  trainer.synchronise();  // the first step's time is its own
  const std::array footprints{before_the_run, with_messages, footprint(choice.device)};
  const Run run{chapter, options, command.values, choice, layout, footprints, recorder};
  const auto report = process.together([&] { return std::make_unique<Report>(run, comm); });
  const auto digests = [&] {
    trainer.synchronise();
    return layer_digests(layout, [&](int l) { return trainer.state(l).weights; });
  };
  for (int step = 0; step < options.steps; ++step) {
    current_step = step + 1;
    report->add(trainer.step(*data, step));
    const bool checks = options.check_every > 0 && (step + 1) % options.check_every == 0;
    if (checks) process.together([&] { return report->check(digests()); });
  }
  return process.together([&] { return report->finish(digests()); });
}
}  // namespace zero
