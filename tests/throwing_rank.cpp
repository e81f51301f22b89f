// SPDX-License-Identifier: MIT
// A chapter's program in which one rank's data fails at one step: throwing_rank RANK STEP.
// tests/throwing_rank_test.py starts it and sees how the job ends.
#include <cstdlib>

#include "error.hpp"
#include "ranks.hpp"
#include "trainer.hpp"

namespace zero::test {

class FailingData : public Data {
 public:
  /// bad_first: of the batch that cannot be read.
  FailingData(const Options& options, int rank, int ranks, std::int64_t bad_first)
      : Data(options, rank, ranks),
        inner_(make_data(options, rank, ranks)),
        bad_first_(bad_first) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    if (first == bad_first_) throw Error(ExitCode::data, "sample is unreadable");
    inner_->load(on, first, inputs, targets);
  }

 private:
  std::unique_ptr<Data> inner_;
  std::int64_t bad_first_;
};

}  // namespace zero::test

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  try {
    const int bad_rank = std::atoi(argv[1]);
    const int bad_step = std::atoi(argv[2]);
    Options options;
    options.task = Task::mlp;
    options.width = 64;
    options.steps = bad_step + 1;
    const auto comm = make_communicator(session, options);
    const std::int64_t bad_first = (std::int64_t{bad_step} * comm->size + bad_rank) * options.batch;
    const test::FailingData data(options, comm->rank, comm->size, bad_first);
    const auto trainer = test::make_trainer<Trainer>(options, *comm);
    for (int step = 0; step < options.steps; ++step) trainer->step(data, step);
    return 0;
  } catch (const std::exception& error) {
    session.abort(error);
  }
}
