// SPDX-License-Identifier: MIT
// doctest's main for tests on MPI ranks: PROGRAM RANKS [mpi|nccl|native] [doctest options]. With
// the second argument the ranks lie on GPUs and talk through MPI, through NCCL in rank order, or
// through NCCL's own reductions; with none, on the CPU.
//
// It cannot hang and cannot pass by not running: a world of another size than RANKS is a failure,
// so is running no test case, and a rank that leaves a test early (a failed REQUIRE, an exception)
// ends the job, because the others would wait for it in the next collective. Failures are printed
// by rank 0, rank after rank, under the name of the rank.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "tests/count_listener.hpp"
#include "tests/ranks/ranks.hpp"

namespace {

const zero::Session* the_session = nullptr;
zero::Options the_options;

[[noreturn]] void leave(const std::string& why) {
  std::fprintf(
      stderr, "[rank %d of %d] %s\n", the_session->rank(), the_session->size(), why.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

struct LeavingListener : zero::test::CountListener {
  using CountListener::CountListener;
  const char* name = "";

  void test_case_start(const doctest::TestCaseData& test) override { name = test.m_name; }
  void test_case_exception(const doctest::TestCaseException& thrown) override {
    leave(std::string(name) + ": exception: " + thrown.error_string.c_str());
  }
  void log_assert(const doctest::AssertData& assertion) override {
    if (!assertion.m_failed || !(assertion.m_at & doctest::assertType::is_require)) return;
    leave(std::string(name) + ": REQUIRE failed at " + assertion.m_file + ":" +
          std::to_string(assertion.m_line) + ": " + assertion.m_expr);
  }
};

REGISTER_LISTENER("leaving", 2, LeavingListener);

/// Prints the texts of the ranks that failed, in rank order, on rank 0.
void print_failures(const std::string& text, bool failed) {
  const int rank = the_session->rank();
  const int ranks = the_session->size();
  int length = failed ? static_cast<int>(text.size()) : 0;
  std::vector<int> lengths(ranks), starts(ranks);
  MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
  int total = 0;
  for (int r = 0; r < ranks; ++r) {
    starts[r] = total;
    total += lengths[r];
  }
  std::string all(total, ' ');
  MPI_Gatherv(text.data(),
              length,
              MPI_CHAR,
              all.data(),
              lengths.data(),
              starts.data(),
              MPI_CHAR,
              0,
              MPI_COMM_WORLD);
  for (int r = 0; rank == 0 && r < ranks; ++r) {
    if (lengths[r] == 0) continue;
    std::cout << "---- rank " << r << " of " << ranks << "\n" << all.substr(starts[r], lengths[r]);
  }
}

}  // namespace

const zero::Session& zero::test::session() {
  return *the_session;
}

const zero::Options& zero::test::options_of_test() {
  return the_options;
}

namespace {

bool asks_for_gpus(const std::string& transport) {
  return transport == "mpi" || transport == "nccl" || transport == "native";
}

/// What the second argument asks for; the device is in use from here on.
void choose(zero::Session& session, const std::string& transport) {
  using namespace zero;
  Command command;
  command.run = true;
  command.options.wanted_device = Device::cuda;
  command.options.wanted_comm = transport == "mpi" ? Comm::mpi : Comm::nccl;
  command.options.reduce = transport == "native" ? Reduce::native : Reduce::ordered;
  the_options = session.agree(command, Chapter{.name = "test"});
}

}  // namespace

int main(int argc, char** argv) {
  zero::Session session(argc, argv);
  the_session = &session;
  const int expected = argc > 1 ? std::atoi(argv[1]) : 0;
  if (expected != session.size()) {
    leave("usage: mpirun -n RANKS PROGRAM RANKS; RANKS is given as " + std::to_string(expected));
  }
  const std::string transport = argc > 2 ? argv[2] : "";
  if (asks_for_gpus(transport)) {
    const zero::Gpus gpus = zero::visible_gpus();
    if (session.rank() == 0 && gpus.count == 0) std::cout << gpus.why_none << "\n";
    if (gpus.count == 0) return 77;  // skipped
    choose(session, transport);
  }
  std::ostringstream text;
  doctest::Context context(argc, argv);
  context.setCout(&text);
  context.setOption("no-intro", true);
  int failed = context.run() != 0 || zero::test::cases_run() == 0 ? 1 : 0;
  print_failures(text.str(), failed != 0);
  int anywhere = 0;
  MPI_Allreduce(&failed, &anywhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (session.rank() == 0) {
    std::cout << zero::test::cases_run() << " test cases on " << session.size()
              << " ranks: " << (anywhere ? "failed" : "passed") << "\n";
  }
  return anywhere;
}
