// SPDX-License-Identifier: MIT
// One training run, from the command line to the closing table: the same for every chapter.
#pragma once
#include "checkpoint/checkpoint.hpp"
#include "common.hpp"
#include "report/report.hpp"
#include "run/choice.hpp"
#include "run/command_line.hpp"
#include "run/failure.hpp"

namespace zero {
/// A process alone, without MPI: what a Session does for ranks.
struct Alone {
  /// Throws Error (usage, resources) when the device that is asked for cannot be had.
  Choice agree(const Command& command, const Card&) const {
    const cpu_set_t cores = own_cores();
    return choose(command.options, {.gpus = visible_gpus(), .cores_here = CPU_COUNT(&cores)});
  }
  template <class Make> auto together(Make make) const { return make(); }
  void agree_on_data(const std::string&) const {}
  Communicator communicator(const Options& options, const Choice&, Device& device,
                            const Layout& layout) const {
    return {0, 1, nullptr, device, options.dtype, layout.largest_layer()};
  }
  int rank() const { return 0; }
  int size() const { return 1; }
};

/// `process` is a Session or Alone: it agrees with the others, if there are any.
template <class Trainer, class Process>
int train(Process&& process, const Command& command, Cards others) {
  const Card& card = Trainer::card;
  Options options = command.options;
  const Choice choice = process.agree(command, card);
  const auto owned = process.together([&] { return make_device(choice, process.size() > 1); });
  Device& device = *owned;
  device.bus.gb_per_s = options.bus;
  device.in_turn = device.host().in_turn = options.narrate > 0;
  const Footprint before_the_run = footprint(device);
  const Layout layout = layout_of(options, process.rank(), process.size());
  process.together([&] { return check_memory(card, options, choice, device, layout, others); });
  const auto data =
      process.together([&] { return make_data(options, device, process.rank(), process.size()); });
  process.agree_on_data(data->description());
  // Times cost a GPU events, and many layers memory: there only whoever asks for them pays.
  const bool traced = !options.trace.empty();
  const bool asked = traced || options.narrate > 0 || options.link > 0 || options.latency > 0;
  const bool cheap = device.type == DeviceType::cpu && layout.layers() * options.accumulate <= 4096;
  Recorder recorder(device, asked || cheap, traced ? Recorder::traced_steps : 2,
                    options.narrate > 0);
  Communicator comm = process.communicator(options, choice, device, layout);
  const Footprint with_messages = footprint(device);
  const auto together = [&](const std::function<void()>& task) {
    process.together([&] { return task(), true; });
  };
  const auto checkpoints = make_checkpoints(
      {options, layout, device, comm, data->description(), together});
  Trainer trainer = [&] {
    if constexpr (card.ranks) {
      return Trainer(options, device, layout, comm);
    } else {
      return Trainer(options, device, layout);
    }
  }();
  trainer.synchronise();  // the first step's time is its own
  const auto since = Clock::now();
  const std::string source = checkpoints->load();
  const std::array footprints{before_the_run, with_messages, footprint(device)};
  Run run{card, options, command.values, choice, device, layout, footprints, recorder};
  // A GPU's products have bits of their own.
  if (device.type == DeviceType::cpu) run.recorded = recorded_digest(command, card, process.size());
  const auto report = process.together([&] { return std::make_unique<Report>(run, comm); });
  const auto digests = [&] {
    trainer.synchronise();
    return layer_digests(device, layout, [&](int l) { return trainer.adam_state(l).weights; });
  };
  if (!source.empty()) report->tell("resume", source, since);
  const bool saves = !options.save.empty();
  if (saves) note_signals();
  const auto signal_of_any_rank = [&] {
    const auto mine = static_cast<std::uint64_t>(noted_signal.load());
    return saves ? static_cast<int>(std::ranges::max(comm.gather({&mine, 1}))) : 0;
  };
  bool unsaved = false;
  const auto before = static_cast<int>(options.begin.steps);
  for (int step = before; step < options.steps; ++step) {
    here.step = step - before + 1;
    const StepResult result = trainer.step(*data, step);
    report->add(result);
    const bool checks = options.check_every > 0 && (step + 1) % options.check_every == 0;
    if (checks) process.together([&] { return report->check(digests()); });
    const int signal = signal_of_any_rank();
    if (checkpoints->passed(result) || signal > 0) {
      trainer.synchronise();
      const auto since = Clock::now();
      const std::string failure = checkpoints->save();
      report->tell("save", checkpoints->path(), since, failure);
      unsaved |= !failure.empty();
    }
    if (signal == 0) continue;
    // Through MPI, as a launcher that got the signal too may answer 0 to an ordinary end.
    if (process.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));  // one tells it
    throw Error(static_cast<ExitCode>(128 + signal),
                fmt::format("ended by signal {} after step {}", signal, step + 1));
  }
  process.together([&] { return report->finish(digests()); });
  return unsaved ? static_cast<int>(ExitCode::resources) : 0;
}

/// The main function of a chapter that is one process; others: cards that advice may name.
template <class Trainer> int run_alone(int argc, char** argv, Cards others) {
  fail_fast(Trainer::card.name, std::_Exit);
  const Command command = read_command(argc, argv, Trainer::card);
  if (const auto exit_code = answer_alone(command, Trainer::card, others)) return *exit_code;
  const std::jthread watching = watchdog(std::chrono::seconds(command.options.timeout), fail);
  return train<Trainer>(Alone(), command, others);
}
}  // namespace zero
