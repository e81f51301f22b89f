// SPDX-License-Identifier: MIT
// Loaded before a program's libraries (LD_PRELOAD), it makes one call of one rank go wrong:
// FAULT="what RANK NUMBER", where NUMBER counts that rank's calls of the function concerned, or, of
// what is about files, all on files while it saves. With
// FILES=folder what the kernel says of memory is read below that folder. Loaded before MPICH's
// launcher it makes that slow.
#include <dlfcn.h>
#include <mpi.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "comm/launcher.hpp"
#include "comm/transport.hpp"
#include "memory/error.hpp"

namespace {
using Clock = std::chrono::steady_clock;

struct Fault {
  Fault() {
    const char* text = std::getenv("FAULT");
    if (text) std::sscanf(text, "%15s %d %d", what, &rank, &number);
  }
  char what[16] = "";
  int rank = -1, number = 0;
  std::atomic<int> calls = 0;
};

/// Whether that fault is to be made in this call, one of those in which it can be.
bool is_now(const char* what) {
  static Fault fault;
  if (std::strcmp(fault.what, what) != 0 || zero::launcher().rank != fault.rank) return false;
  return ++fault.calls == fault.number;
}

/// Not one by which ranks agree on a run: those come before any that is no gather's.
bool is_of_the_run(int tag) {
  constexpr int collectives = zero::names_of<zero::Collective>.size();
  static std::atomic<bool> begun = false;
  begun = begun || (tag >= 0 && tag % collectives != static_cast<int>(zero::Collective::gather));
  return begun;
}

/// A call on a file, or a folder, of that name or none: from the first `.partial` on a run is
/// saved. False when it is to fail, with errno.
bool on_file(const char* path = "") {
  static std::atomic<bool> saves = false;
  saves = saves || std::strstr(path, ".partial");
  if (!saves) return true;
  if (is_now("file")) std::raise(SIGKILL);
  const bool full = is_now("full"), denied = is_now("denied");
  if (full || denied) errno = full ? ENOSPC : EROFS;
  return !full && !denied;
}

void sleep_long() { std::this_thread::sleep_for(std::chrono::hours(1)); }

template <class Function> Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::set<ino_t> unsynced;  // files that were written

ino_t file_of(int fd) {
  struct stat seen {};
  fstat(fd, &seen);
  return seen.st_ino;
}

std::atomic<Clock::time_point> last_test;
std::atomic<bool> with_itself = false;  // this rank exchanges, in a run of two, instead of its peer
}  // namespace

extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  static std::vector<char> spoiled;  // this rank keeps what it has
  if (!is_of_the_run(tag)) return PMPI_Isend(data, count, type, to, tag, comm, request);
  if (is_now("throws")) throw zero::Error(zero::ExitCode::data, "sample is unreadable");
  if (is_now("exits")) std::exit(0);
  if (is_now("killed")) std::raise(SIGKILL);
  if (is_now("stopped")) std::raise(SIGSTOP);
  if (is_now("stuck")) sleep_long();
  if (is_now("unsent")) return MPI_ERR_OTHER;
  if (is_now("short")) count /= 2;
  if (is_now("lost")) to = MPI_PROC_NULL;
  if (with_itself.exchange(false)) to = zero::launcher().rank;
  const bool flips = is_now("bit");
  if (flips || is_now("nan")) {
    spoiled.assign(static_cast<const char*>(data), static_cast<const char*>(data) + count);
    if (flips) spoiled[2] ^= 0x40;  // a high bit of an fp32 number
    if (!flips) std::memset(spoiled.data(), 0xff, sizeof(float));
    data = spoiled.data();
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (!is_of_the_run(tag)) return PMPI_Irecv(data, count, type, from, tag, comm, request);
  if (is_now("long")) count /= 2;
  if (is_now("skips")) {
    with_itself = true;
    from = zero::launcher().rank;
  }
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request* requests, int* some, int* done, MPI_Status* statuses) {
  last_test = Clock::now();
  if (is_now("untested")) return MPI_ERR_OTHER;
  return PMPI_Testsome(count, requests, some, done, statuses);
}

int MPI_Finalize() {
  if (is_now("unfinished")) sleep_long();
  // No program may end sooner, whatever else its run is for.
  const bool too_soon = Clock::now() - last_test.load() < std::chrono::milliseconds(50);
  if (too_soon) PMPI_Abort(MPI_COMM_WORLD, 99);
  return PMPI_Finalize();
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  if (is_now("memory")) return nullptr;
  return next<void*(std::size_t, std::size_t)>("aligned_alloc")(alignment, size);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*), void* with) {
  Dl_info caller{};  // UCX starts a thread, too, when it is loaded
  dladdr(__builtin_return_address(0), &caller);
  if (std::strstr(caller.dli_fname, "libstdc++") && is_now("thread")) return EAGAIN;
  return next<decltype(pthread_create)>("pthread_create")(thread, how, body, with);
}

int poll(struct pollfd* files, nfds_t count, int patience) {
  const int ready = next<decltype(poll)>("poll")(files, count, patience);
  if (ready <= 0 || !std::strstr(program_invocation_short_name, "proxy")) return ready;
  // It sees one thing at a time, and a rank that closes its output has ended before that is read.
  const auto first = std::find_if(files, files + count, [](const auto& f) { return f.revents; });
  std::for_each(first + 1, files + count, [](auto& f) { f.revents = 0; });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  return 1;
}

/// By another name, as its own takes any number of arguments.
int open_file(const char* path, int how, mode_t mode) asm("open64");
int open_file(const char* path, int how, mode_t mode) {
  return on_file(path) ? next<decltype(open_file)>("open64")(path, how, mode) : -1;
}
int mkdir(const char* path, mode_t mode) {
  unsynced.clear();  // with which a save begins
  return on_file(path) ? next<decltype(mkdir)>("mkdir")(path, mode) : -1;
}
ssize_t pwrite64(int fd, const void* data, size_t size, off_t at) {
  if (!on_file()) return -1;
  size = std::min<std::size_t>(size, 5000);  // the system need not write all at once
  unsynced.insert(file_of(fd));
  return next<decltype(pwrite64)>("pwrite64")(fd, data, size, at);
}
int fsync(int fd) {
  unsynced.erase(file_of(fd));
  return on_file() ? next<decltype(fsync)>("fsync")(fd) : -1;
}
int rename(const char* from, const char* to) noexcept {
  if (!unsynced.empty()) return errno = EBUSY, -1;
  return on_file() ? next<decltype(rename)>("rename")(from, to) : -1;
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return on_file() ? next<decltype(unlinkat)>("unlinkat")(folder, path, flags) : -1;
}

std::FILE* fopen64(const char* path, const char* mode) {
  const char* below = std::getenv("FILES");
  const bool moved = below && (std::strstr(path, "/cgroup") || std::strstr(path, "/meminfo"));
  const std::string instead = moved ? std::string(below) + path : path;
  return next<std::FILE*(const char*, const char*)>("fopen64")(instead.c_str(), mode);
}
/// By which GCC 14's streams and later ones open a file; to this compiler the name is fopen64's.
std::FILE* plain_fopen(const char* path, const char* mode) asm("fopen");
std::FILE* plain_fopen(const char* path, const char* mode) { return fopen64(path, mode); }
}
