// SPDX-License-Identifier: MIT
// A chapter's run in which rank 1 fails in the middle of the third step, HOW the environment says:
// it throws, is killed, is stopped or gets stuck in a sleep. That ends the job, so it is run only
// when asked for: by tests/programs/gpu_test.py, which sees how the job ends.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>

#include "tests/ranks/ranks.hpp"

namespace zero::test {
TEST_CASE("rank 1 fails in the third step" * doctest::skip()) {
  Options options = mlp_options(64, 8);
  options.steps = 3;
  const std::int64_t bad_first = (2 * ranks().size + 1) * options.batch;
  const auto fail = [=, how = std::string(std::getenv("HOW"))](Kernels&, std::int64_t first, View) {
    if (first != bad_first) return;
    if (how == "killed") std::raise(SIGKILL);
    if (how == "stopped") std::raise(SIGSTOP);
    if (how == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ExitCode::data, "sample is unreadable");
  };
  const auto make = [=, good = ordinary_data(options)](int rank, int ranks) {
    return std::make_unique<TamperedData>(good(rank, ranks), fail);
  };
  // Nobody catches it, as in a chapter's main.
  [&]() noexcept { run(options, make); }();
}
}  // namespace zero::test
