// SPDX-License-Identifier: MIT
// Loaded before a program's libraries (LD_PRELOAD), it makes one thing of one rank go wrong:
//   FAULT="WHAT RANK COLLECTIVE LAYER STEP": WHAT happens to RANK's first message of that
//     collective, layer (-1: none) and step (from 1). No earlier step may be skipped: a skipped
//     step sends fewer messages, and steps are counted by messages.
//   FAULT="WHAT RANK NUMBER": WHAT happens at RANK's NUMBER-th call of is_now(WHAT), below. For
//     file, full and denied on_file() calls it, from the first save on.
//   FAULT="WHAT RANK NUMBER ERRNO": RANK's NUMBER-th call of fails(WHAT) below fails with ERRNO;
//     with ERRNO 0, pread reports the end of the file.
//   FAULT="some RANK": every pread and pwrite moves at most a page. "unaligned RANK": each of them
//     fails that bypasses the page cache. "room RANK": every file system has one free block.
// In all ranks a rename fails before what was written is synced, a removal before the folder of a
// renamed file is synced, and MPI_Finalize less than 50 ms after the last MPI_Testsome.
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
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
    if (text) std::sscanf(text, "%15s %d %15s %d %d", what, &rank, where, &layer_or_errno, &step);
  }
  char what[16] = "", where[16] = "";  // where: a collective, or the number of a call
  int rank = -1, layer_or_errno = 0, step = 0;
  std::atomic<int> calls = 0;  // so far, at which the fault was possible
} fault;

/// Counts a call at which the fault `what` is possible. Returns whether it must happen now.
bool is_now(const char* what) {
  if (std::strcmp(fault.what, what) != 0 || zero::launcher().rank != fault.rank) return false;
  return ++fault.calls == std::atoi(fault.where);
}

void sleep_long() { std::this_thread::sleep_for(std::chrono::hours(1)); }

/// Whether this call of `function` must fail. If so, sets errno to the fault's ERRNO.
bool fails(const char* function) {
  if (!is_now(function)) return false;
  errno = fault.layer_or_errno;
  return true;
}

/// Whether the fault is `what`, in every call of this rank.
bool always(const char* what) {
  return std::strcmp(fault.what, what) == 0 && zero::launcher().rank == fault.rank;
}

bool bypasses_cache(int fd) { return (fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

/// Whether this call may read or write the file; if not, errno says why. May reduce `size`, bytes.
bool may_transfer(int fd, std::size_t& size) {
  if (is_now("locked_disk")) flockfile(stderr), sleep_long();  // so the watchdog cannot print
  if (is_now("stuck_disk")) sleep_long();
  if (always("some")) size = std::min<std::size_t>(size, 4096);
  if (always("unaligned") && bypasses_cache(fd)) return errno = EINVAL, false;
  return true;
}

/// The fault of this message, or an empty text.
std::string fault_of_message(int to, int tag) {
  using zero::Collective;
  // {(receiver, tag): messages}. A step may send several of a tag: parameters are gathered twice.
  // `sums` are sent once a step, of layer -1, so their tag is the collective's number.
  static std::map<std::pair<int, int>, int> sent;
  constexpr int collectives = zero::names_of<Collective>.size();
  const int steps_over = sent[{to, static_cast<int>(Collective::sums)}];
  const int step = std::min(++sent[{to, tag}], steps_over + 1);
  const char* of = zero::name_of(static_cast<Collective>(tag % collectives));
  const bool now = zero::launcher().rank == fault.rank && std::strcmp(of, fault.where) == 0 &&
                   tag / collectives - 1 == fault.layer_or_errno && step == fault.step &&
                   ++fault.calls == 1;
  return now ? fault.what : "";
}

/// Called before each open, mkdir, pwrite, fsync, rename and unlinkat. The first save begins with
/// the first path with `.partial`. Returns false, with errno set, if the call must fail.
bool on_file(const char* path = "") {
  static std::atomic<bool> saves = false;
  saves = saves || std::strstr(path, ".partial");
  if (!saves) return true;
  if (is_now("file")) std::raise(SIGKILL);
  const bool full = is_now("full"), denied = is_now("denied");
  if (full || denied) errno = full ? ENOSPC : EROFS;
  return !full && !denied;
}

/// The library's own function `name`, which the function of this name below replaces.
template <class Function> Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::set<ino_t> unsynced;  // files written and folders made, until fsync
ino_t renamed_in = 0;  // the folder in which a file was renamed, until it is synced

ino_t folder_at(const std::string& path) {
  struct stat seen {};
  return stat(path.c_str(), &seen) == 0 ? seen.st_ino : 0;
}

ino_t file_of(int fd) {
  struct stat seen {};
  fstat(fd, &seen);
  return seen.st_ino;
}

std::atomic<Clock::time_point> last_test;
}  // namespace

extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  static std::vector<char> spoiled;  // a copy, because the sender's own data stay right
  const std::string what = fault_of_message(to, tag);
  if (what == "throws") throw zero::Error(zero::ExitCode::data, "sample is unreadable");
  if (what == "exits") std::exit(0);
  if (what == "killed") std::raise(SIGKILL);
  if (what == "stopped") std::raise(SIGSTOP);
  if (what == "stuck") sleep_long();
  if (what == "unsent") return MPI_ERR_OTHER;
  if (what == "short") count /= 2;
  if (what == "lost") to = MPI_PROC_NULL;
  if (what == "bit" || what == "nan" || what == "long") {
    int size = 0;
    MPI_Type_size(type, &size);
    const auto* bytes = static_cast<const char*>(data);
    spoiled.assign(bytes, bytes + count * size);
    if (what == "bit") spoiled[2] ^= 0x40;  // the highest bit of the fraction
    if (what == "nan") std::memset(spoiled.data(), 0xff, sizeof(float));
    if (what == "long") spoiled.resize(2 * spoiled.size()), count *= 2;
    data = spoiled.data();
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request* requests, int* some, int* done, MPI_Status* statuses) {
  last_test = Clock::now();
  return PMPI_Testsome(count, requests, some, done, statuses);
}

int MPI_Finalize() {
  if (is_now("unfinished")) sleep_long();
  // ~Session() first sleeps for 50 ms: MPICH moves no message here, but a peer may wait for one.
  const bool too_soon = Clock::now() - last_test.load() < std::chrono::milliseconds(50);
  if (too_soon) PMPI_Abort(MPI_COMM_WORLD, 99);
  return PMPI_Finalize();
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  if (is_now("memory")) return nullptr;
  return next<void*(std::size_t, std::size_t)>("aligned_alloc")(alignment, size);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*), void* with) {
  Dl_info caller{};  // only C++ threads count: UCX starts one of its own
  dladdr(__builtin_return_address(0), &caller);
  if (std::strstr(caller.dli_fname, "libstdc++") && is_now("thread")) return EAGAIN;
  return next<decltype(pthread_create)>("pthread_create")(thread, how, body, with);
}

/// open64, declared under another name, because its own declaration has variable arguments.
int open_file(const char* path, int how, mode_t mode) asm("open64");
int open_file(const char* path, int how, mode_t mode) {
  const bool nameless = (how & O_TMPFILE) == O_TMPFILE, direct = (how & O_DIRECT) != 0;
  if ((nameless && fails("tmpfile")) || (direct && fails("direct"))) return -1;
  return on_file(path) ? next<decltype(open_file)>("open64")(path, how, mode) : -1;
}

ssize_t pread64(int file, void* data, std::size_t size, off64_t at) {
  if (fails("pread")) return errno == 0 ? 0 : -1;
  return may_transfer(file, size) ? next<decltype(pread64)>("pread64")(file, data, size, at) : -1;
}
int statfs64(const char* path, struct statfs64* seen) noexcept {
  const int code = next<decltype(statfs64)>("statfs64")(path, seen);
  if (always("room")) seen->f_bavail = 1;
  return code;
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
  if (fails("fallocate")) return errno;
  return next<decltype(posix_fallocate64)>("posix_fallocate64")(file, at, size);
}
int mkdir(const char* path, mode_t mode) {
  unsynced.clear();  // mkdir begins a new save: forget the one before
  const int code = on_file(path) ? next<decltype(mkdir)>("mkdir")(path, mode) : -1;
  if (code == 0) unsynced.insert(folder_at(path));
  return code;
}
ssize_t pwrite64(int fd, const void* data, size_t size, off_t at) {
  if (!on_file() || fails("pwrite") || !may_transfer(fd, size)) return -1;
  // POSIX allows a shorter write: here each through the page cache writes at most 5000 bytes.
  if (!bypasses_cache(fd)) size = std::min<std::size_t>(size, 5000);
  unsynced.insert(file_of(fd));
  return next<decltype(pwrite64)>("pwrite64")(fd, data, size, at);
}
int fsync(int fd) {
  unsynced.erase(file_of(fd));
  if (file_of(fd) == renamed_in) renamed_in = 0;
  return on_file() ? next<decltype(fsync)>("fsync")(fd) : -1;
}
int rename(const char* from, const char* to) noexcept {
  if (!unsynced.empty()) return errno = EBUSY, -1;
  const int code = on_file() ? next<decltype(rename)>("rename")(from, to) : -1;
  if (code == 0) renamed_in = folder_at(std::filesystem::path(to).parent_path());
  return code;
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  struct stat removed {};  // a removed file need not be synced
  if (fstatat(folder, path, &removed, 0) == 0) unsynced.erase(removed.st_ino);
  if (renamed_in != 0) return errno = EBUSY, -1;
  return on_file() ? next<decltype(unlinkat)>("unlinkat")(folder, path, flags) : -1;
}
}
