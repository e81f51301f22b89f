// SPDX-License-Identifier: MIT
#include "run/session.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <thread>

#include "comm/mpi_support.hpp"
#include "run/choice.hpp"
#include "run/launcher.hpp"

namespace zero {

Session::Session(int& argc, char**& argv) {
  int provided = 0;
  // One thread at a time, but not always the same one: chapter 06 has a communication thread.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  process_bytes_at_start_ = process_peak_bytes();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (provided < MPI_THREAD_SERIALIZED) {
    abort(Error(ExitCode::communication, "this MPI allows calls from one thread only"));
  }
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &ranks_here_);
  MPI_Comm_rank(here, &place_here_);
  MPI_Comm_free(&here);
}

Session::~Session() {
  MPI_Finalize();
}

Options Session::agree(const Command& command, const Chapter& chapter) {
  agree_all([&] {
    const Launcher announced = launcher();
    if (announced.started && announced.ranks != size_) {
      throw Error(
          ExitCode::usage,
          fmt::format("the launcher started {} ranks, MPI sees {}: start it with the mpirun "
                      "of the MPI it was built with (mpiexec.mpich, mpiexec.openmpi)",
                      announced.ranks,
                      size_));
    }
    if (command.status != 0) throw Error(static_cast<ExitCode>(command.status), command.text);
  });
  // What differs first is told, so what decides which options there are comes first.
  std::vector<std::pair<std::string, std::string>> mine{{"program", chapter.name},
                                                        {"--help", command.run ? "no" : "yes"}};
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  for (const auto& [name, value] : command.values) {
    mine.emplace_back("--" + name, std::visit(text, value));
  }
  agree_all_equal(mine);
  if (!command.run) throw Refusal(static_cast<ExitCode>(command.status), command.text);
  Options options = command.options;
  choose_together(options);
  return options;
}

void Session::choose_together(Options& options) {
  Machine machine{
      .gpus = visible_gpus(), .nccl = nccl_is_built(), .ranks = size_, .ranks_here = ranks_here_};
  machine.gpu = gpu_of(place_here_, machine.gpus.count);
  // Which ranks mean the same GPU: each may number those that it sees by itself.
  const std::uint64_t mine =
      machine.gpus.count > 0 ? machine.gpus.identities[machine.gpu] : std::uint64_t{0};
  const std::vector<std::uint64_t> all = MpiWorld().gather({&mine, 1});
  machine.users = static_cast<int>(std::count(all.begin(), all.end(), mine));
  machine.gpus_in_use = static_cast<int>(std::set<std::uint64_t>(all.begin(), all.end()).size());
  Choice choice;
  agree_all([&] { choice = choose(options, machine); });
  agree_all([&] { check_same_device(choice.device); });
  agree_all([&] { use_device(choice.device, choice.gpu); });
  options.device = choice.device;
  options.comm = choice.comm;
  options.why = choice.why;
  sharing_ = choice.sharing;
}

/// What was asked for is the same everywhere, so only what was found can differ.
void Session::check_same_device(Device mine) const {
  const std::string of_rank_0 = broadcast(0, name_of(mine));
  if (of_rank_0 == name_of(mine)) return;
  const bool gpu = mine == Device::cuda;
  throw Error(ExitCode::resources,
              fmt::format("rank {} finds {}, rank 0 finds {}: say --device cpu, or give each a GPU",
                          rank_,
                          gpu ? "a GPU" : "no GPU",
                          gpu ? "none" : "one"));
}

void Session::agree_all_equal(const std::vector<std::pair<std::string, std::string>>& mine) {
  constexpr char end = '\0';  // no argument contains it
  std::string all;
  for (const auto& [name, value] : mine) all += name + "=" + value + end;
  const std::string of_rank_0 = broadcast(0, all);
  agree_all([&] {
    std::size_t start = 0;
    for (const auto& [name, value] : mine) {
      const std::string entry = of_rank_0.substr(start, of_rank_0.find(end, start) - start);
      if (entry != name + "=" + value) {
        throw Error(ExitCode::usage,
                    fmt::format("rank {} was started with {} {}, rank 0 with {}: start every rank "
                                "the same way",
                                rank_,
                                name,
                                value,
                                entry.substr(entry.find('=') + 1)));
      }
      start += entry.size() + 1;
    }
  });
}

void Session::agree_all(const std::function<void()>& attempt) {
  constexpr int fine = std::numeric_limits<int>::max();
  int failed = fine;
  int code = 0;
  std::string why;
  try {
    attempt();
  } catch (const Error& error) {
    failed = rank_;
    code = static_cast<int>(error.code);
    why = error.what();
  }
  int first = fine;
  MPI_Request request;
  check_mpi(MPI_Iallreduce(&failed, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request));
  finish({&request, 1});
  if (first == fine) return;
  check_mpi(MPI_Ibcast(&code, 1, MPI_INT, first, MPI_COMM_WORLD, &request));
  finish({&request, 1});
  throw Refusal(static_cast<ExitCode>(code), broadcast(first, why));
}

std::string Session::broadcast(int root, std::string text) const {
  auto length = static_cast<int>(text.size());
  MPI_Request request;
  check_mpi(MPI_Ibcast(&length, 1, MPI_INT, root, MPI_COMM_WORLD, &request));
  finish({&request, 1});
  text.resize(length);
  check_mpi(MPI_Ibcast(text.data(), length, MPI_CHAR, root, MPI_COMM_WORLD, &request));
  finish({&request, 1});
  return text;
}

int Session::refuse(const Refusal& refusal) const {
  const int code = static_cast<int>(refusal.code);
  // Of several that each believe to be alone one tells it, and only that one's exit code counts: a
  // launcher may stop all at the first that is not 0.
  if (launcher().rank != rank_) return 0;
  if (rank_ == 0) fmt::print(code == 0 ? stdout : stderr, "{}\n", refusal.what());
  return code;
}

void Session::abort(const std::exception& error) const {
  fmt::print(stderr, "rank {}/{}: {}\n", rank_, size_, error.what());
  std::fflush(stderr);
  // The launcher ends the job at once, and what it has not yet passed on is lost.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  MPI_Abort(MPI_COMM_WORLD, exit_code_of(error));
  std::abort();  // not reached; MPI_Abort is not declared noreturn
}

std::unique_ptr<Communicator> make_communicator(const Session& session, const Options& options) {
  if (options.comm == Transport::nccl) return make_nccl_communicator(session, options.reduce);
  return make_mpi_communicator(session);
}

}  // namespace zero
