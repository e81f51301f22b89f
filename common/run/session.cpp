// SPDX-License-Identifier: MIT
#include "run/session.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include "comm/launcher.hpp"
#include "comm/mpi.hpp"
#include "run/choice.hpp"
#include "run/failure.hpp"

namespace zero {
namespace {
void end_job(int code) {
  // The launcher ends the job at once, and what it has not yet passed on is lost. The thread that
  // fails calls MPI even if another is in it: nothing that is sent matters any more.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  MPI_Abort(MPI_COMM_WORLD, code);
}

/// While ranks share cores, each gets so much less done in a second.
std::chrono::seconds patience(int timeout, int ranks_here) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::chrono::seconds(timeout) * std::max(1, (ranks_here + cores - 1) / cores);
}
}  // namespace

Session::Session(int& argc, char**& argv) {
  int provided = 0;
  // One thread at a time, but not always the same one: chapter 06 has a communication thread.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  process_bytes_at_start_ = process_peak_bytes();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  fail_fast(fmt::format("rank {}/{}", rank_, size_), end_job);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error(ExitCode::communication, "this MPI allows calls from one thread only");
  }
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &ranks_here_);
  MPI_Comm_rank(here, &place_here_);
  MPI_Comm_free(&here);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // until here MPI ends the job itself
}

Session::~Session() {
  watchdog_.reset();
  MPI_Finalize();
}

Choice Session::agree(const Command& command, const Chapter& chapter) {
  watchdog_.emplace(patience(command.options.timeout, ranks_here_),
                    [](const std::string& what) { fail(Error(ExitCode::communication, what)); });
  agree_on_launch(command, chapter);
  if (!command.run) throw Refusal(static_cast<ExitCode>(command.status), command.text);
  return choose_together(command.options);
}

void Session::agree_on_launch(const Command& command, const Chapter& chapter) {
  attempt([&] {
    const Launcher announced = launcher();
    if (announced.started && announced.ranks != size_) {
      throw Error(
          ExitCode::usage,
          fmt::format("the launcher started {} ranks, MPI sees {}: start it with the mpirun "
                      "of the MPI it was built with (mpiexec.mpich, mpiexec.openmpi)",
                      announced.ranks, size_));
    }
    if (command.status != 0) throw Error(static_cast<ExitCode>(command.status), command.text);
  });
  // What differs first is told, so what decides which options there are comes first.
  std::vector<std::string> mine{fmt::format("program {}", chapter.name),
                                fmt::format("--help {}", command.run ? "no" : "yes")};
  for (const auto& [name, value] : command.values) {
    const auto text = [](const auto& held) { return fmt::format("{}", held); };
    mine.push_back(fmt::format("--{} {}", name, std::visit(text, value)));
  }
  std::string all;
  for (const std::string& word : mine) all += word + '\0';  // which no argument contains
  std::istringstream of_rank_0(broadcast(0, all));
  attempt([&] {
    for (const std::string& word : mine) {
      std::string there;
      std::getline(of_rank_0, there, '\0');
      if (there == word) continue;
      throw Error(ExitCode::usage,
                  fmt::format("rank {} was started with {}, rank 0 with {}: start every rank the "
                              "same way",
                              rank_, word, there.substr(there.find(' ') + 1)));
    }
  });
}

Choice Session::choose_together(const Options& options) {
  Machine machine{
      .gpus = visible_gpus(), .nccl = nccl_is_built(), .ranks = size_, .ranks_here = ranks_here_};
  machine.gpu = gpu_of(place_here_, machine.gpus.count);
  // Which ranks mean the same GPU: each may number those that it sees by itself.
  const std::uint64_t mine =
      machine.gpus.count > 0 ? machine.gpus.identities[machine.gpu] : std::uint64_t{0};
  const std::vector<std::uint64_t> all = gather(mine);
  machine.users = static_cast<int>(std::count(all.begin(), all.end(), mine));
  machine.gpus_in_use = static_cast<int>(std::set<std::uint64_t>(all.begin(), all.end()).size());
  const Choice choice = together([&] { return choose(options, machine); });
  // What was asked for is the same everywhere, so only what was found can differ.
  const std::string of_rank_0 = broadcast(0, name_of(choice.device));
  attempt([&] {
    if (of_rank_0 != name_of(choice.device)) {
      const bool gpu = choice.device == Device::cuda;
      throw Error(
          ExitCode::resources,
          fmt::format("rank {} finds {}, rank 0 finds {}: say --device cpu, or give each a GPU",
                      rank_, gpu ? "a GPU" : "no GPU", gpu ? "none" : "one"));
    }
    if (choice.device == Device::cuda) use_gpu(choice.gpu);
  });
  return choice;
}

void Session::attempt(const std::function<void()>& task) {
  constexpr int fine = std::numeric_limits<int>::max();
  int failed = fine;
  int code = 0;
  std::string why;
  try {
    task();
  } catch (const Error& error) {
    failed = rank_;
    code = static_cast<int>(error.code);
    why = error.what();
  }
  int first = fine;
  complete([&](MPI_Request* request) {
    return MPI_Iallreduce(&failed, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, request);
  });
  if (first == fine) return;
  complete([&](MPI_Request* request) {
    return MPI_Ibcast(&code, 1, MPI_INT, first, MPI_COMM_WORLD, request);
  });
  throw Refusal(static_cast<ExitCode>(code), broadcast(first, why));
}

std::string Session::broadcast(int root, std::string text) const {
  auto length = static_cast<int>(text.size());
  complete([&](MPI_Request* request) {
    return MPI_Ibcast(&length, 1, MPI_INT, root, MPI_COMM_WORLD, request);
  });
  text.resize(length);
  complete([&](MPI_Request* request) {
    return MPI_Ibcast(text.data(), length, MPI_CHAR, root, MPI_COMM_WORLD, request);
  });
  return text;
}

std::vector<std::uint64_t> Session::gather(std::uint64_t value) const {
  std::vector<std::uint64_t> all(size_);
  complete([&](MPI_Request* request) {
    return MPI_Iallgather(&value, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD,
                          request);
  });
  return all;
}

int Session::refuse(const Refusal& refusal) const {
  const int code = static_cast<int>(refusal.code);
  // Of several that each believe to be alone one tells it, and only that one's exit code counts: a
  // launcher may stop all at the first that is not 0.
  if (launcher().rank != rank_) return 0;
  if (rank_ == 0) fmt::print(code == 0 ? stdout : stderr, "{}\n", refusal.what());
  return code;
}

Communicator Session::communicator(const Options& options, const Choice& choice,
                                   const Layout& layout) {
  auto transport = choice.comm == Comm::nccl ? make_nccl_transport(options.reduce, rank_, size_)
                                             : make_mpi_transport(choice.device, size_);
  return Communicator(rank_, size_, std::move(transport), choice.device, options.dtype,
                      layout.largest_layer());
}
}  // namespace zero
