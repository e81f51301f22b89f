// SPDX-License-Identifier: MIT
// The main function of tests on ranks: PROGRAM RANKS [mpi|nccl|native] [doctest options]. With the
// second argument the ranks use GPUs and communicate through MPI, through NCCL in rank order, or
// with NCCL's own reductions; without it they use the CPU.
//
// It is a failure if the number of ranks is not RANKS, or if no test case runs. A rank that leaves
// a case early, by a failed REQUIRE or an exception, ends the job, because the others would wait
// for it in the next collective. Rank 0 prints the failures of all ranks.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "run/choice.hpp"
#include "run/failure.hpp"
#include "tests/count_listener.hpp"
#include "tests/ranks/ranks.hpp"

namespace zero::test {
namespace {
const Ranks* the_ranks = nullptr;

[[noreturn]] void leave(const std::string& why) { fail(std::runtime_error(why)); }

struct LeavingListener : CountListener {
  using CountListener::CountListener;
  const char* name = "";

  void test_case_start(const doctest::TestCaseData& test) override { name = test.m_name; }
  void test_case_exception(const doctest::TestCaseException& thrown) override {
    leave(fmt::format("{}: exception: {}", name, thrown.error_string.c_str()));
  }
  void log_assert(const doctest::AssertData& assertion) override {
    if (!assertion.m_failed || !(assertion.m_at & doctest::assertType::is_require)) return;
    leave(fmt::format("{}: REQUIRE failed at {}:{}: {}", name, assertion.m_file, assertion.m_line,
                      assertion.m_expr));
  }
};

REGISTER_LISTENER("leaving", 2, LeavingListener);

int run_all(int argc, char** argv) {
  std::ostringstream text;
  doctest::Context context(argc, argv);
  context.setCout(&text);
  context.setOption("no-intro", true);
  const bool failed = context.run() != 0 || cases_run() == 0;
  const std::vector<std::string> said =
      ranks().communicator({}, layout_here({}))->gather_texts(failed ? text.str() + "\n" : "");
  const bool passed = std::ranges::all_of(said, &std::string::empty);  // no rank failed
  for (std::size_t r = 0; r < said.size() && ranks().rank == 0; ++r) {
    if (!said[r].empty()) fmt::print("---- rank {} of {}\n{}", r, said.size(), said[r]);
  }
  if (ranks().rank == 0) {
    fmt::print("{} test cases on {} ranks: {}\n", cases_run(), said.size(),
               passed ? "passed" : "failed");
  }
  return passed ? 0 : 1;
}
}  // namespace

const Ranks& ranks() { return *the_ranks; }
}  // namespace zero::test

int main(int argc, char** argv) {
  using namespace zero;
  Session session(argc, argv);
  const int expected = argc > 1 ? std::atoi(argv[1]) : 0;
  if (expected != session.size()) test::leave("usage: mpirun -n RANKS PROGRAM RANKS");
  const std::string way = argc > 2 ? argv[2] : "";
  const bool on_gpus = way == "mpi" || way == "nccl" || way == "native";
  if (const Gpus gpus = visible_gpus(); on_gpus && gpus.count == 0) {
    if (session.rank() == 0) fmt::print("{}\n", gpus.why_none);
    return 77;  // skipped
  }
  Command command;
  command.run = true;
  // PATIENCE: after so many seconds without progress the watchdog ends the job.
  if (const char* patience = std::getenv("PATIENCE")) {
    command.options.timeout = std::max(1, std::atoi(patience));
  }
  command.options.device = on_gpus ? DeviceType::cuda : DeviceType::cpu;
  command.options.comm = way == "nccl" || way == "native" ? Comm::nccl : Comm::mpi;
  command.options.reduce = way == "native" ? Reduce::native : Reduce::ordered;
  const Choice choice = session.agree(command, {.name = "test"});
  const auto device =
      session.make_on_all_ranks([&] { return make_device(choice, session.size() > 1); });
  const test::Ranks ranks{session, session.rank(),         session.size(),
                          choice,  command.options.reduce, *device};
  test::the_ranks = &ranks;
  return test::run_all(argc, argv);
}
