// SPDX-License-Identifier: MIT
#include "run/session.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <sys/statvfs.h>

#include <atomic>
#include <cstring>
#include <set>
#include <sstream>

#include "comm/launcher.hpp"
#include "compute/watchdog.hpp"
#include "run/choice.hpp"
#include "run/failure.hpp"

namespace zero {
namespace {
std::atomic<bool> finalizing = false;

void end_job(int code) {
  // Gives the launcher time to pass on output. Another thread may be in MPI: no harm at the end.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (finalizing) std::_Exit(code);
  MPI_Abort(MPI_COMM_WORLD, code);
}

/// Called at exit. Fails if MPI still runs: else other ranks would wait, or the job end with 0.
void expect_finalized() {
  int done = 0;
  MPI_Finalized(&done);
  if (done || failing) return;
  fail(Error(ExitCode::communication, "left in the middle of the run: something called exit"));
}

/// Bytes of /dev/shm that UCX 1.13 takes for a rank of MPICH: 512 buffers of 8256 bytes, and more.
constexpr std::int64_t shared_bytes = 4'292'720;

/// Returns the free bytes of /dev/shm; INT64_MAX if this MPI does not use /dev/shm.
std::int64_t free_shared_memory() {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(library, &length);
  struct statvfs room {};
  const bool needed = std::strstr(library, "ch4:ucx") && !std::getenv("UCX_TLS") &&
                      !std::getenv("UCX_POSIX_DIR") && statvfs("/dev/shm", &room) == 0;
  return needed && room.f_blocks > 0 ? room.f_bavail * room.f_frsize : INT64_MAX;
}
}  // namespace

Session::Session(int& argc, char**& argv)
    : program_(who_fails), free_shared_(free_shared_memory()) {
  // With too little of /dev/shm, MPI starts without it, so that the ranks can refuse together.
  if (free_shared_ / shared_bytes < environment_number("MPI_LOCALNRANKS").value_or(1))
    setenv("UCX_TLS", "^posix", 0);
  int provided = 0;
  // Threads call MPI one at a time, but not always the same thread: 06 has a communication stream.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  // MPI's own handlers of a crash may wait for ever, as for a lock that the crashed thread holds.
  for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(crash, SIG_DFL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  fail_fast(fmt::format("rank {}/{}", rank_, size_), end_job);
  if (provided < MPI_THREAD_SERIALIZED)
    throw_error(ExitCode::communication, "this MPI allows calls from one thread only");
  // Group ranks by host name: with MPICH 5 over UCX, MPI_COMM_TYPE_SHARED puts every rank alone.
  constexpr int room = MPI_MAX_PROCESSOR_NAME;
  char host[room] = {};
  int length = 0, first = 0;  // the first rank on this host
  MPI_Get_processor_name(host, &length);
  std::vector<char> names(room * size_);
  MPI_Allgather(host, room, MPI_CHAR, names.data(), room, MPI_CHAR, MPI_COMM_WORLD);
  while (std::strcmp(&names[room * first], host) != 0) ++first;
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, first, rank_, &here);
  MPI_Comm_size(here, &ranks_here_);
  MPI_Comm_rank(here, &place_here_);
  cpu_set_t cores = own_cores();  // all ranks' are joined: a launcher may give each its own cores
  MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, here);
  cores_here_ = CPU_COUNT(&cores);
  // The rank that looked first saw the most, before MPI took any.
  MPI_Allreduce(MPI_IN_PLACE, &free_shared_, 1, MPI_INT64_T, MPI_MAX, here);
  MPI_Comm_free(&here);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // up to here an error ended the job
  if (ranks_here_ < size_) who_fails += fmt::format(" on {}", host);
  std::atexit(expect_finalized);
  everybody_.emplace(rank_, size_, make_mpi_transport(*host_), *host_, Dtype::fp32, 0);
}

Session::~Session() {
  const TaskScope leaving({"the end of MPI"});
  everybody_->gather(std::array<std::uint64_t, 1>());  // returns when all ranks are here
  // In MPI_Finalize MPICH moves no more messages. Between hosts one in three jobs hung: a rank
  // still waited for what its peer had to pass on. With this time for the peer's threads none did.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  finalizing = true;
  MPI_Finalize();
}

Choice Session::agree(const Command& command, const Card& card) {
  // Ranks that share cores are slower, so the timeout is multiplied by the ranks per core.
  const int cores = std::max(1, cores_here_);
  const int patience = command.options.timeout * ((ranks_here_ + cores - 1) / cores);
  watching_ = watchdog(std::chrono::seconds(patience), fail);
  // Only the first difference is reported, so program and --help come first. No text contains '\0'.
  std::string mine =
      fmt::format("program {}{}--help {}{}", card.name, '\0', command.run ? "no" : "yes", '\0');
  for (const auto& [name, value] : command.values) {
    const auto text = [](const auto& held) { return fmt::format("{}", held); };
    mine += fmt::format("--{} {}{}", name, std::visit(text, value), '\0');
  }
  std::istringstream here(mine), of_rank_0(everybody_->gather_texts(mine)[0]);
  on_all_ranks(
      [&] {
        const auto [ranks, rank, by] = launcher(true);
        if (by && ranks != size_)
          throw_error(
              ExitCode::usage,
              "the launcher started {0} ranks, MPI sees {1} ({2}={0}): use mpirun -n {0} {3} ..., "
              "of the MPI it was built with (mpiexec.mpich, mpiexec.openmpi); or unset {2}",
              ranks, size_, by, program_);
        if (command.status != 0) throw Error(static_cast<ExitCode>(command.status), command.text);
        std::string word, there;
        while (std::getline(here, word, '\0')) {
          std::getline(of_rank_0, there, '\0');
          if (there != word)
            throw_error(
                ExitCode::usage,
                "rank {} was started with {}, rank 0 with {}: start every rank the same way", rank_,
                word, there.substr(there.find(' ') + 1));
        }
        if (command.run && free_shared_ / shared_bytes < ranks_here_)
          throw_error(
              ExitCode::resources,
              "MPI needs {} bytes of /dev/shm for {}, {} are free: give it more (docker run "
              "--shm-size=1g), or use fewer ranks",
              grouped(shared_bytes * ranks_here_), counted(ranks_here_, "rank"),
              grouped(free_shared_));
      },
      false);
  if (!command.run) throw Refusal(static_cast<ExitCode>(command.status), command.text);
  return choose_on_all_ranks(command.options);
}

Choice Session::choose_on_all_ranks(const Options& options) {
  Machine machine{.gpus = visible_gpus(),
                  .nccl = nccl_is_built(),
                  .ranks = size_,
                  .ranks_here = ranks_here_,
                  .cores_here = cores_here_};
  machine.gpu = gpu_of(place_here_, machine.gpus.count);
  // Find out which ranks have the same GPU. Numbers do not tell: 0 may be another GPU on each rank.
  const std::string mine =
      machine.gpus.count > 0 ? fmt::to_string(machine.gpus.identities[machine.gpu]) : "";
  const std::vector<std::string> all = everybody_->gather_texts(mine);
  machine.users = static_cast<int>(std::count(all.begin(), all.end(), mine));
  machine.gpus_in_use = static_cast<int>(std::set<std::string>(all.begin(), all.end()).size());
  const Choice choice = make_on_all_ranks([&] { return choose(options, machine); });
  on_all_ranks(
      [&] {
        const bool gpu = choice.device == DeviceType::cuda;
        // The options are the same on all ranks, so only the machines can differ.
        if (!options.device && mine.empty() != all[0].empty())
          throw_error(ExitCode::resources,
                      "rank {} finds {}, rank 0 finds {}: say --device cpu, or give each a GPU",
                      rank_, gpu ? "a GPU" : "no GPU", gpu ? "none" : "one");
      },
      false);
  return choice;
}

void Session::on_all_ranks(const std::function<void()>& task, bool names_rank) {
  std::string failure;  // the exit code as a character, then who fails and why; empty: none
  try {
    task();
  } catch (const Error& error) {
    failure = fmt::format("{}{}: {}", static_cast<char>(error.code), who_fails, error.what());
  }
  const std::vector<std::string> all = everybody_->gather_texts(failure);
  const auto first = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  if (first == all.end()) return;
  const bool named = names_rank && std::count(all.begin(), all.end(), "") > 0;
  throw Refusal(static_cast<ExitCode>(first->front()),
                named ? first->substr(1) : program_ + first->substr(first->find(": ")));
}

void Session::agree_on_data(const std::string& description) {
  const std::string of_rank_0 = everybody_->gather_texts(description)[0];
  on_all_ranks(
      [&] {
        if (of_rank_0 != description)
          throw_error(ExitCode::data, "rank {} reads {}, rank 0 {}: give every rank the same file",
                      rank_, description, of_rank_0);
      },
      false);
}

int Session::refuse(const Refusal& refusal) const {
  const int code = static_cast<int>(refusal.code);
  // If the launcher and MPI disagree, only the launcher's rank 0 reports. The others return 0,
  // because at another code a launcher may stop all ranks at once.
  if (launcher(true).rank != rank_) return 0;
  if (rank_ == 0) std::fprintf(code == 0 ? stdout : stderr, "%s\n", refusal.what());
  return code;
}

std::unique_ptr<Communicator> Session::communicator(const Options& options, const Choice& choice,
                                                    Device& device, const Layout& layout) {
  const std::int64_t largest = layout.largest_layer(), part = largest / size_;
  constexpr std::int64_t most = std::numeric_limits<int>::max();  // MPI counts elements in an int
  on_all_ranks([&] {
    if (size_ > 1 && choice.comm == Comm::mpi && part > most)
      throw_error(ExitCode::usage,
                  "a message of MPI's has at most {} elements, a rank's part of the largest layer "
                  "has {}: use narrower layers, or more ranks",
                  grouped(most), grouped(part));
  });
  if (choice.comm == Comm::nccl)
    return make_nccl_communicator(device, options, largest, *everybody_);
  auto transport = make_mpi_transport(device, (size_ - 1) * part * bytes_of(options.dtype));
  return std::make_unique<Communicator>(rank_, size_, std::move(transport), device, options.dtype,
                                        largest, Link{options.link, options.latency});
}

int train_on_ranks(int argc, char** argv, const Card& card, MakeTrainer& make) {
  fail_fast(card.name, std::_Exit);  // until Session makes this process one of several ranks
  const Command command = read_command(argc, argv, card);
  if (const auto exit_code = answer_alone(command, card)) return *exit_code;
  note_signals();
  Session session(argc, argv);
  try {
    return train(session, command, card, make);
  } catch (const Refusal& refusal) {
    return session.refuse(refusal);
  }
}
}  // namespace zero
