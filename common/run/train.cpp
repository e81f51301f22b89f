// SPDX-License-Identifier: MIT
#include "run/train.hpp"

#include "checkpoint/checkpoint.hpp"
#include "compute/watchdog.hpp"
#include "memory/throw_error.hpp"
#include "report/report.hpp"
#include "run/choice.hpp"
#include "run/failure.hpp"

namespace zero {
namespace {
class Alone : public Process {
 public:
  Choice agree(const Command& command, const Card&) override {
    const cpu_set_t cores = own_cores();
    return choose(command.options, {.gpus = visible_gpus(), .cores_here = CPU_COUNT(&cores)});
  }
  void on_all_ranks(const std::function<void()>& task) override { task(); }
  void agree_on_data(const std::string&) override {}
  std::unique_ptr<Communicator> communicator(const Options& options, const Choice&, Device& device,
                                             const Layout& layout) override {
    return std::make_unique<Communicator>(0, 1, nullptr, device, options.dtype,
                                          layout.largest_layer());
  }
  int rank() const override { return 0; }
  int size() const override { return 1; }
};

std::unique_ptr<Recorder> make_recorder(const Options& options, const Layout& layout,
                                        Device& device) {
  const bool traced = !options.trace.empty(), cpu = device.type == DeviceType::cpu;
  // Recording costs events on a GPU, and memory for many layers: there it must be asked for.
  const bool asked = traced || options.link > 0 || options.latency > 0;
  const bool cheap = cpu && layout.layers() * options.accumulate <= 4096;
  const bool values = traced && cpu && layout.parameters() <= 64;  // no reader follows more numbers
  return std::make_unique<Recorder>(device, asked || cheap, traced, values);
}

/// A whole run. The constructor sets it up.
class Training {
 public:
  Training(Process& process, const Command& command, const Card& card, MakeTrainer& make)
      : process_(process),
        options_(command.options),
        choice_(process.agree(command, card)),
        device_(
            process.make_on_all_ranks([&] { return make_device(choice_, process.size() > 1); })),
        layout_(layout_of(options_, process.rank(), process.size())),
        data_(make_data(card)),
        recorder_(make_recorder(options_, layout_, *device_)),
        comm_(process.communicator(options_, choice_, *device_, layout_)),
        checkpoints_(make_checkpoints({options_, layout_, *device_, *comm_, data_->description(),
                                       [this](const auto& task) { process_.on_all_ranks(task); }})),
        trainer_(make(options_, *device_, layout_, *comm_)) {
    recorder_->sent = &comm_->sent();
    recorder_->before = options_.begin.steps;
    trainer_->synchronise();  // so that set-up is no part of the first step's time
    const auto since = Clock::now();
    const std::string source = checkpoints_->load();
    report_ = process.make_on_all_ranks([&] {
      const Run run{card, options_, command.values, choice_, *device_, layout_, *recorder_};
      return std::make_unique<Report>(run, *comm_);
    });
    if (!source.empty()) report_->tell("resume", source, since, "", checkpoints_->notes);
  }

  int run() {
    // Whoever first clears `starting` decides: here steps begin; in starting_ the process ends.
    if (!starting.exchange(false)) std::this_thread::sleep_for(std::chrono::hours(1));
    for (auto step = static_cast<int>(options_.begin.steps); step < options_.steps; ++step) {
      here.step = step + 1;
      const StepResult result = trainer_->step(*data_, step);
      report_->add(result);
      const bool checks = options_.check_every > 0 && (step + 1) % options_.check_every == 0;
      if (checks) process_.on_all_ranks([&, mine = digests()] { report_->check(mine); });
      const int signal = signal_of_any_rank();
      if (checkpoints_->count(result) || (saves() && signal > 0)) save();
      if (signal > 0) end_at(signal, fmt::format("after step {}", step + 1));
    }
    process_.on_all_ranks([&, mine = digests()] { report_->finish(mine); });
    return unsaved_ ? static_cast<int>(ExitCode::resources) : 0;
  }

 private:
  std::unique_ptr<Data> make_data(const Card& card) {
    device_->bus.gb_per_s = options_.bus;
    device_->at(Place::disk).bus.gb_per_s = options_.disk;
    device_->at(Place::disk).folder = options_.offload_dir;
    process_.on_all_ranks([&] { check_memory(card, options_, choice_, *device_, layout_); });
    auto data = process_.make_on_all_ranks(
        [&] { return zero::make_data(options_, *device_, process_.rank(), process_.size()); });
    process_.agree_on_data(data->description());
    return data;
  }

  LayerDigests digests() {
    trainer_->synchronise();
    const auto weights = [&](int l) { return trainer_->adam_state(l).weights; };
    return process_.make_on_all_ranks([&] { return layer_digests(*device_, layout_, weights); });
  }

  void save() {
    trainer_->synchronise();
    const auto since = Clock::now();
    const std::string failure = checkpoints_->save();
    report_->tell("save", checkpoints_->path(), since, failure);
    unsaved_ |= !failure.empty();
  }

  bool saves() const { return !options_.save.empty(); }

  /// Returns this rank's signal or, with --save, any rank's, so that all save together; 0: none.
  int signal_of_any_rank() {
    const auto mine = static_cast<std::uint64_t>(noted_signal.load());
    return static_cast<int>(saves() ? std::ranges::max(comm_->gather({&mine, 1})) : mine);
  }

  [[noreturn]] void end_at(int signal, const std::string& when) const {
    // An error ends the job through MPI. After an ordinary end a launcher that got the signal, too,
    // might return 0. The other ranks wait, so that rank 0, if it got the signal, reports it.
    if (process_.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw_error(static_cast<ExitCode>(128 + signal), "ended by signal {} {}", signal, when);
  }

  Process& process_;
  /// Reads noted_signal before the first step, while the main thread loads files or awaits ranks.
  const std::jthread starting_{[this](const std::stop_token& stop) {
    for (; starting && !stop.stop_requested();
         std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      if (noted_signal > 0 && starting.exchange(false))
        end_at(noted_signal, "before the first step");
  }};
  Options options_;  // a checkpoint sets options_.begin
  const Choice choice_;
  const std::unique_ptr<Device> device_;
  const Layout layout_;
  const std::unique_ptr<Data> data_;
  const std::unique_ptr<Recorder> recorder_;
  const std::unique_ptr<Communicator> comm_;
  const std::unique_ptr<Checkpoints> checkpoints_;
  const std::unique_ptr<AnyTrainer> trainer_;
  std::unique_ptr<Report> report_;
  bool unsaved_ = false;  // true: a checkpoint could not be written
};
}  // namespace

int train(Process& process, const Command& command, const Card& card, MakeTrainer& make) {
  note_signals();
  const Card of_run = with_state(card, command.options.state);
  return Training(process, command, of_run, make).run();
}

int train_alone(int argc, char** argv, const Card& card, MakeTrainer& make) {
  fail_fast(card.name, std::_Exit);
  const Command command = read_command(argc, argv, card);
  if (const auto exit_code = answer_alone(command, card)) return *exit_code;
  const std::jthread watching = watchdog(std::chrono::seconds(command.options.timeout), fail);
  Alone alone;
  return train(alone, command, card, make);
}
}  // namespace zero
