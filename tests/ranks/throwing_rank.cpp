// SPDX-License-Identifier: MIT
// A chapter's program on GPUs that talk through NCCL, in which rank 1 fails in the middle of the
// third step: throwing_rank HOW SECONDS. It throws, is killed, is stopped or gets stuck in a sleep;
// SECONDS is the run's --timeout. tests/programs/throwing_rank_test.py sees how it ends.
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/ranks/ranks.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  constexpr int bad_rank = 1, bad_step = 2;
  Command command;
  command.run = true;
  Options& options = command.options;
  options = test::mlp_options(64, 8);
  options.device = Device::cuda;
  options.comm = Comm::nccl;
  options.timeout = std::atoi(argv[2]);
  const Choice choice = session.agree(command, Trainer::chapter);
  const Layout layout(architecture(options).sizes(), session.rank(), session.size());
  Communicator comm = session.communicator(options, choice, layout);
  const std::int64_t bad_first =
      (std::int64_t{bad_step} * session.size() + bad_rank) * options.batch;
  const auto fail = [&, how = std::string(argv[1])](Kernels&, std::int64_t first, View) {
    if (first != bad_first) return;
    if (how == "killed") std::raise(SIGKILL);
    if (how == "stopped") std::raise(SIGSTOP);
    if (how == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ExitCode::data, "sample is unreadable");
  };
  const test::TamperedData data(make_data(options, choice.device, session.rank(), session.size()),
                                fail);
  Trainer trainer(options, choice.device, layout, comm);
  for (int step = 0; step <= bad_step; ++step) {
    current_step = step + 1;
    trainer.step(data, step);
  }
  return 0;
}
