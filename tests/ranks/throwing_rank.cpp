// SPDX-License-Identifier: MIT
// A chapter's program in which one rank fails at one step: throwing_rank RANK STEP [HOW]. It
// throws, is killed or gets stuck; with `nccl` before HOW the ranks are GPUs, and a stuck one is
// given up after three seconds. tests/throwing_rank_test.py starts it and sees how the job ends.
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/nccl_patience.hpp"
#include "memory/error.hpp"
#include "tests/ranks/ranks.hpp"
#include "trainer.hpp"

namespace zero::test {

class FailingData : public Data {
 public:
  /// bad_first: of the batch that cannot be read.
  FailingData(
      const Options& options, int rank, int ranks, std::int64_t bad_first, const std::string& how)
      : Data(options, rank, ranks),
        inner_(make_data(options, rank, ranks)),
        bad_first_(bad_first),
        how_(how) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    if (first == bad_first_) fail();
    inner_->load(on, first, inputs, targets);
  }

 private:
  void fail() const {
    if (how_ == "killed") std::raise(SIGKILL);
    if (how_ == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ExitCode::data, "sample is unreadable");
  }

  std::unique_ptr<Data> inner_;
  std::int64_t bad_first_;
  std::string how_;
};

}  // namespace zero::test

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  try {
    const int bad_rank = std::atoi(argv[1]);
    const int bad_step = std::atoi(argv[2]);
    const bool nccl = argc > 3 && std::string(argv[3]) == "nccl";
    const std::string how = argc > 3 + nccl ? argv[3 + nccl] : "throws";
    Command command;
    command.run = true;
    command.options.wanted_device = nccl ? Device::cuda : Device::cpu;
    command.options.wanted_comm = nccl ? Comm::nccl : Comm::mpi;
    Options options = session.agree(command, Trainer::chapter);
    options.task = Task::mlp;
    options.width = 64;
    options.steps = bad_step + 1;
    const auto comm = make_communicator(session, options);
    const std::int64_t bad_first = (std::int64_t{bad_step} * comm->size + bad_rank) * options.batch;
    const test::FailingData data(options, comm->rank, comm->size, bad_first, how);
    const auto trainer = test::make_trainer<Trainer>(options, *comm);
    for (int step = 0; step < options.steps; ++step) {
      // Not before: libraries may take longer than that to get ready.
      if (step == bad_step) set_nccl_patience(std::chrono::seconds(3));
      trainer->step(data, step);
    }
    return 0;
  } catch (const std::exception& error) {
    session.abort(error);
  }
}
