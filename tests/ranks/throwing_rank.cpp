// SPDX-License-Identifier: MIT
// A chapter's program in which one rank fails in the middle of a step: throwing_rank RANK STEP HOW
// SECONDS [nccl]. It throws, is killed, is stopped or gets stuck in a sleep; SECONDS is the run's
// --timeout; with nccl the ranks are GPUs. tests/programs/throwing_rank_test.py sees how it ends.
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "memory/error.hpp"
#include "run/session.hpp"
#include "trainer.hpp"

namespace zero::test {
class FailingData : public Data {
 public:
  /// bad_first: of the batch that cannot be read.
  FailingData(const Data& good, std::int64_t bad_first, std::string how)
      : Data(good), good_(good), bad_first_(bad_first), how_(std::move(how)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    if (first == bad_first_) fail();
    good_.load(on, first, inputs, targets);
  }

 private:
  void fail() const {
    if (how_ == "killed") std::raise(SIGKILL);
    if (how_ == "stopped") std::raise(SIGSTOP);
    if (how_ == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ExitCode::data, "sample is unreadable");
  }

  const Data& good_;
  std::int64_t bad_first_;
  std::string how_;
};
}  // namespace zero::test

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  const int bad_rank = std::atoi(argv[1]);
  const int bad_step = std::atoi(argv[2]);
  const bool nccl = argc > 5;
  Command command;
  command.run = true;
  Options& options = command.options;
  options.device = nccl ? Device::cuda : Device::cpu;
  options.comm = nccl ? Comm::nccl : Comm::mpi;
  options.task = Task::mlp;
  options.width = 64;
  options.timeout = std::atoi(argv[4]);
  const Choice choice = session.agree(command, Trainer::chapter);
  const Layout layout(architecture(options).sizes(), session.rank(), session.size());
  Communicator comm = session.communicator(options, choice, layout);
  const auto good = make_data(options, choice.device, session.rank(), session.size());
  const std::int64_t bad_first =
      (std::int64_t{bad_step} * session.size() + bad_rank) * options.batch;
  const test::FailingData data(*good, bad_first, argv[3]);
  Trainer trainer(options, choice.device, layout, comm);
  for (int step = 0; step <= bad_step; ++step) {
    current_step = step + 1;
    trainer.step(data, step);
  }
  return 0;
}
