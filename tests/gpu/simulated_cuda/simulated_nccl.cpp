// SPDX-License-Identifier: MIT
// NCCL on simulated GPUs. Each pair of ranks has a Unix domain socket; the thread of the stream
// that an operation was given to carries it out. As in the real library the operations of a
// communicator follow each other in the order of their calls, whatever their streams.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "memory/dtype.hpp"
#include "nccl.h"
#include "simulated_cuda.hpp"

namespace {

/// How soon whatever waits sees that the communicator was aborted.
constexpr std::chrono::milliseconds glance(2);
/// For so long the first group of a communicator that does not block is in progress.
constexpr std::chrono::milliseconds first_launch(20);
constexpr unsigned int config_magic = 0xcafebeef;

struct Failure {
  ncclResult_t result;
  std::string why;
};

enum class Kind : std::uint64_t { hello, point_to_point, all_gather, reduce_scatter };

struct Operation {
  enum class What { send, receive, all_gather, reduce_scatter } what;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  int peer;
};

/// 0: no such type.
std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

std::size_t bytes_of(const Operation& operation) {
  return operation.count * bytes_of(operation.type);
}

template <class T>
void add(void* sum, const void* term, std::size_t count) {
  auto* const to = static_cast<T*>(sum);
  const auto* const from = static_cast<const T*>(term);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, zero::Bf16> || std::is_same_v<T, zero::Fp16>) {
      to[i] = zero::narrow<T>(zero::widen(to[i]) + zero::widen(from[i]));
    } else {
      to[i] = static_cast<T>(to[i] + from[i]);
    }
  }
}

void add(ncclDataType_t type, void* sum, const void* term, std::size_t count) {
  switch (type) {
    case ncclInt8:
      return add<std::int8_t>(sum, term, count);
    case ncclUint8:
      return add<std::uint8_t>(sum, term, count);
    case ncclInt64:
      return add<std::int64_t>(sum, term, count);
    case ncclFloat16:
      return add<zero::Fp16>(sum, term, count);
    case ncclFloat32:
      return add<float>(sum, term, count);
    case ncclFloat64:
      return add<double>(sum, term, count);
    case ncclBfloat16:
      return add<zero::Bf16>(sum, term, count);
  }
}

/// Messages that go on together: in order on each socket, in no order between sockets. In front of
/// each goes what it is and its size, since ranks that disagree on this are wrong.
class Exchange {
 public:
  Exchange(Kind kind, const std::atomic<bool>& aborted)
      : kind_(kind),
        aborted_(aborted) {}

  void send(int socket, const void* data, std::size_t bytes) {
    push(lanes_[socket].out, const_cast<void*>(data), bytes);
  }

  void receive(int socket, void* data, std::size_t bytes) { push(lanes_[socket].in, data, bytes); }

  void run() {
    while (true) {
      std::vector<pollfd> sockets;
      for (const auto& [socket, lane] : lanes_) {
        const int events = (lane.in.empty() ? 0 : POLLIN) | (lane.out.empty() ? 0 : POLLOUT);
        if (events) sockets.push_back({socket, static_cast<short>(events), 0});
      }
      if (sockets.empty()) return;
      if (aborted_) throw Failure{ncclInternalError, "aborted"};
      poll(sockets.data(), sockets.size(), glance.count());
      for (const pollfd& ready : sockets) {
        if (ready.revents) advance(ready.fd, lanes_[ready.fd]);
      }
    }
  }

 private:
  struct Header {
    Kind kind;
    std::uint64_t bytes;
  };
  /// A header, or what comes after it.
  struct Piece {
    std::byte* at;
    std::size_t left;
    const Header* expected;  // of a header that is received
    const Header* received;
  };
  struct Lane {
    std::deque<Piece> out;
    std::deque<Piece> in;
  };

  void push(std::deque<Piece>& pieces, void* data, std::size_t bytes) {
    const Header& expected = headers_.emplace_back(Header{kind_, bytes});
    Header& moved = headers_.emplace_back(expected);
    pieces.push_back({reinterpret_cast<std::byte*>(&moved), sizeof moved, &expected, &moved});
    if (bytes) pieces.push_back({static_cast<std::byte*>(data), bytes, nullptr, nullptr});
  }

  static void advance(int socket, Lane& lane) {
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    while (!lane.in.empty()) {
      Piece& piece = lane.in.front();
      const auto moved = recv(socket, piece.at, piece.left, flags);
      if (moved == 0) throw Failure{ncclRemoteError, "a peer closed the connection"};
      if (!account(piece, moved)) break;
      if (piece.left) continue;
      check(piece);
      lane.in.pop_front();
    }
    while (!lane.out.empty()) {
      Piece& piece = lane.out.front();
      if (!account(piece, ::send(socket, piece.at, piece.left, flags))) break;
      if (!piece.left) lane.out.pop_front();
    }
  }

  /// False when nothing can move right now.
  static bool account(Piece& piece, ssize_t moved) {
    if (moved < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
      throw Failure{ncclRemoteError, std::string("lost a peer: ") + std::strerror(errno)};
    }
    piece.at += moved;
    piece.left -= static_cast<std::size_t>(moved);
    return true;
  }

  static void check(const Piece& piece) {
    if (!piece.expected) return;
    const Header& expected = *piece.expected;
    const Header& received = *piece.received;
    if (received.kind == expected.kind && received.bytes == expected.bytes) return;
    simulated::die(
        "NCCL: a rank expects a message of kind %d and %zu bytes, its peer sends kind %d "
        "and %zu bytes",
        static_cast<int>(expected.kind),
        static_cast<std::size_t>(expected.bytes),
        static_cast<int>(received.kind),
        static_cast<std::size_t>(received.bytes));
  }

  const Kind kind_;
  const std::atomic<bool>& aborted_;
  std::map<int, Lane> lanes_;
  std::deque<Header> headers_;  // a deque: its elements stay where they are
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int ranks, std::string directory, int rank, bool blocking)
      : ranks_(ranks),
        rank_(rank),
        blocking_(blocking),
        directory_(std::move(directory)),
        sockets_(static_cast<std::size_t>(ranks), -1) {
    cudaGetDevice(&device_);
  }

  int ranks() const { return ranks_; }
  ncclResult_t state() const { return state_; }

  const char* last_error() const {
    return state_ == ncclSuccess || state_ == ncclInProgress ? "" : why_.c_str();
  }

  ncclResult_t initialise() {
    if (!blocking_) return in_background([this] { connect_all(); });
    connect_all();
    if (state_ == ncclInProgress) state_ = ncclSuccess;
    return state_;
  }

  /// The first group of a communicator that does not block is under way for a while, so that a
  /// caller which does not ask until it is not any more is found out.
  ncclResult_t launch(cudaStream_t stream, std::vector<Operation> operations) {
    if (state_ == ncclInProgress) return ncclInvalidArgument;
    if (state_ != ncclSuccess) return state_;
    if (!sends_to_itself_match(operations)) return ncclInvalidUsage;
    if (blocking_ || std::exchange(launched_, true)) {
      queue(stream, std::move(operations));
      return ncclSuccess;
    }
    return in_background([this, stream, operations = std::move(operations)] {
      std::this_thread::sleep_for(first_launch);
      queue(stream, operations);
    });
  }

  ncclResult_t finalise() {
    if (state_ == ncclInProgress) return ncclInvalidArgument;
    if (!blocking_ && state_ == ncclSuccess) return in_background([this] { drain(); });
    drain();
    return state_;
  }

  void destroy() {
    wait_for_background();
    drain();
    hang_up();
  }

  /// What runs ends; what is still queued will do nothing.
  void abort() {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
    wait_for_background();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !busy_; });
    }
    hang_up();
  }

 private:
  struct Hello {
    int rank;
    int device;
    char host[64];
  };

  ncclResult_t in_background(std::function<void()> work) {
    wait_for_background();
    ncclResult_t expected = ncclSuccess;
    state_.compare_exchange_strong(expected, ncclInProgress);
    {
      const std::lock_guard lock(mutex_);
      background_ = true;
    }
    std::thread([self = shared_from_this(), work = std::move(work)] {
      work();
      // An operation may have failed meanwhile.
      ncclResult_t expected = ncclInProgress;
      self->state_.compare_exchange_strong(expected, ncclSuccess);
      const std::lock_guard lock(self->mutex_);
      self->background_ = false;
      self->changed_.notify_all();
    }).detach();
    return ncclInProgress;
  }

  void hang_up() {
    for (int& socket : sockets_) {
      if (socket >= 0) close(std::exchange(socket, -1));
    }
  }

  void wait_for_background() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !background_; });
  }

  /// The first failure stays.
  void fail(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (state_ != ncclSuccess && state_ != ncclInProgress) return;
    why_ = failure.why;
    state_ = failure.result;
  }

  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || serving_ == issued_; });
  }

  void queue(cudaStream_t stream, std::vector<Operation> operations) {
    std::uint64_t ticket = 0;
    {
      const std::lock_guard lock(mutex_);
      ticket = issued_++;
    }
    auto work = [self = shared_from_this(), ticket, operations = std::move(operations)] {
      self->execute(ticket, operations);
    };
    simulated::enqueue(stream, std::move(work));
  }

  void execute(std::uint64_t ticket, const std::vector<Operation>& operations) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return aborted_ || serving_ == ticket; });
      if (aborted_) return;
      busy_ = true;
    }
    try {
      if (state_ == ncclSuccess || state_ == ncclInProgress) carry_out(operations);
    } catch (const Failure& failure) {
      if (!aborted_) fail(failure);
    }
    const std::lock_guard lock(mutex_);
    busy_ = false;
    ++serving_;
    changed_.notify_all();
  }

  void carry_out(const std::vector<Operation>& operations) {
    send_and_receive(operations);
    for (const Operation& operation : operations) {
      if (operation.what == Operation::What::all_gather) all_gather(operation);
      if (operation.what == Operation::What::reduce_scatter) reduce_scatter(operation);
    }
  }

  void send_and_receive(const std::vector<Operation>& operations) {
    Exchange exchange(Kind::point_to_point, aborted_);
    std::deque<const void*> own;
    for (const Operation& operation : operations) {
      if (operation.what != Operation::What::send) continue;
      if (operation.peer == rank_) {
        own.push_back(operation.from);
      } else {
        exchange.send(socket_of(operation.peer), operation.from, bytes_of(operation));
      }
    }
    for (const Operation& operation : operations) {
      if (operation.what != Operation::What::receive) continue;
      if (operation.peer == rank_) {
        if (operation.count) std::memmove(operation.to, own.front(), bytes_of(operation));
        own.pop_front();
      } else {
        exchange.receive(socket_of(operation.peer), operation.to, bytes_of(operation));
      }
    }
    exchange.run();
  }

  void all_gather(const Operation& operation) {
    const std::size_t bytes = bytes_of(operation);
    auto* const to = static_cast<std::byte*>(operation.to);
    Exchange exchange(Kind::all_gather, aborted_);
    for (int peer = 0; peer < ranks_; ++peer) {
      std::byte* const part = to + static_cast<std::size_t>(peer) * bytes;
      if (peer == rank_) {
        std::memmove(part, operation.from, bytes);
      } else {
        exchange.send(socket_of(peer), operation.from, bytes);
        exchange.receive(socket_of(peer), part, bytes);
      }
    }
    exchange.run();
  }

  /// Slice s starts at rank s + 1, and each rank on the way to rank s adds its own to what it gets:
  /// another order than by rank, and a rounding at each hop.
  void reduce_scatter(const Operation& operation) {
    const std::size_t bytes = bytes_of(operation);
    const auto* const from = static_cast<const std::byte*>(operation.from);
    const auto slice = [&](int behind) {  // that many places behind this rank
      return from + static_cast<std::size_t>((rank_ + ranks_ - behind) % ranks_) * bytes;
    };
    const std::byte* const first = slice(1 % ranks_);
    std::vector<std::byte> sum(first, first + bytes);
    std::vector<std::byte> arriving(bytes);
    for (int hop = 1; hop < ranks_; ++hop) {
      Exchange exchange(Kind::reduce_scatter, aborted_);
      exchange.send(socket_of((rank_ + 1) % ranks_), sum.data(), bytes);
      exchange.receive(socket_of((rank_ + ranks_ - 1) % ranks_), arriving.data(), bytes);
      exchange.run();
      add(operation.type, arriving.data(), slice((hop + 1) % ranks_), operation.count);
      sum.swap(arriving);
    }
    std::memcpy(operation.to, sum.data(), bytes);
  }

  int socket_of(int peer) const { return sockets_[static_cast<std::size_t>(peer)]; }

  bool sends_to_itself_match(const std::vector<Operation>& operations) const {
    std::vector<std::size_t> sends;
    std::vector<std::size_t> receives;
    for (const Operation& operation : operations) {
      if (operation.peer != rank_) continue;
      if (operation.what == Operation::What::send) sends.push_back(bytes_of(operation));
      if (operation.what == Operation::What::receive) receives.push_back(bytes_of(operation));
    }
    return sends == receives;
  }

  sockaddr_un address_of(int rank) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s/%d", directory_.c_str(), rank);
    return address;
  }

  /// Calls the ranks below and is called by those above: rank 0 answers first, so nobody waits in a
  /// circle. Every rank can be called before it calls, and so the directory goes with the last one.
  void connect_all() {
    const sockaddr_un own = address_of(rank_);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    try {
      if (listener < 0 ||
          bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
          listen(listener, ranks_) != 0) {
        throw Failure{ncclSystemError, std::string("cannot listen: ") + std::strerror(errno)};
      }
      std::vector<Hello> hellos{own_hello()};
      for (int peer = 0; peer < rank_; ++peer) hellos.push_back(greet(call(peer)));
      for (int peer = rank_ + 1; peer < ranks_; ++peer) hellos.push_back(greet(answer(listener)));
      refuse_shared_devices(hellos);
    } catch (const Failure& failure) {
      fail(failure);
    }
    if (listener >= 0) close(listener);
    unlink(own.sun_path);
    rmdir(directory_.c_str());
  }

  int call(int peer) {
    const sockaddr_un address = address_of(peer);
    while (!aborted_) {
      const int called = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (called < 0) throw Failure{ncclSystemError, std::strerror(errno)};
      if (connect(called, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        return called;
      }
      close(called);
      std::this_thread::sleep_for(glance);
    }
    throw Failure{ncclInternalError, "aborted"};
  }

  int answer(int listener) {
    while (!aborted_) {
      pollfd ready{listener, POLLIN, 0};
      if (poll(&ready, 1, glance.count()) != 1) continue;
      const int caller = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (caller >= 0) return caller;
    }
    throw Failure{ncclInternalError, "aborted"};
  }

  Hello own_hello() const {
    Hello hello{rank_, device_, {}};
    const char* const host = std::getenv("NCCL_HOSTID");
    std::snprintf(hello.host, sizeof hello.host, "%s", host ? host : "simulated host");
    return hello;
  }

  Hello greet(int socket) {
    const Hello own = own_hello();
    Hello other{};
    Exchange exchange(Kind::hello, aborted_);
    exchange.send(socket, &own, sizeof own);
    exchange.receive(socket, &other, sizeof other);
    try {
      exchange.run();
    } catch (const Failure&) {
      close(socket);
      throw;
    }
    sockets_.at(static_cast<std::size_t>(other.rank)) = socket;
    return other;
  }

  /// Looks at all pairs, so that every rank is told and none waits for those that were.
  static void refuse_shared_devices(const std::vector<Hello>& hellos) {
    for (const Hello& a : hellos) {
      for (const Hello& b : hellos) {
        if (a.rank >= b.rank || a.device != b.device || std::strcmp(a.host, b.host) != 0) continue;
        throw Failure{ncclInvalidUsage,
                      "Duplicate GPU detected : rank " + std::to_string(a.rank) + " and rank " +
                          std::to_string(b.rank) + " both on device " + std::to_string(a.device)};
      }
    }
  }

  const int ranks_;
  const int rank_;
  const bool blocking_;
  const std::string directory_;
  int device_ = 0;
  std::vector<int> sockets_;  // by peer; -1: this rank
  bool launched_ = false;
  std::atomic<ncclResult_t> state_ = ncclInProgress;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::string why_;  // not written again once state_ is an error
  std::uint64_t issued_ = 0;
  std::uint64_t serving_ = 0;
  bool busy_ = false;
  bool background_ = false;  // a thread of this communicator's own is at work
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Communicator> communicator;  // queued operations hold it too
};

namespace {

struct Call {
  ncclComm_t comm;
  cudaStream_t stream;
  Operation operation;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local ncclResult_t group_error = ncclSuccess;  // one bad call spoils the whole group

ncclResult_t launch_group(const std::vector<Call>& calls) {
  ncclResult_t result = ncclSuccess;
  std::vector<ncclComm_t> done;
  for (const Call& first : calls) {
    if (std::find(done.begin(), done.end(), first.comm) != done.end()) continue;
    done.push_back(first.comm);
    std::vector<Operation> operations;
    for (const Call& call : calls) {
      if (call.comm != first.comm) continue;
      if (call.stream != first.stream) simulated::die("NCCL: a group with more than one stream");
      operations.push_back(call.operation);
    }
    const ncclResult_t one = first.comm->communicator->launch(first.stream, std::move(operations));
    if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess)) result = one;
  }
  return result;
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const Operation& operation) {
  const bool gather = operation.what == Operation::What::all_gather;
  const bool reduce = operation.what == Operation::What::reduce_scatter;
  const int ranks = comm ? comm->communicator->ranks() : 0;
  const bool known_peer = gather || reduce || (operation.peer >= 0 && operation.peer < ranks);
  if (!comm || !known_peer || bytes_of(operation.type) == 0) {
    if (group_depth > 0) group_error = ncclInvalidArgument;
    return ncclInvalidArgument;
  }
  if (operation.count == 0 && (gather || reduce)) return ncclSuccess;
  const std::size_t bytes = bytes_of(operation);
  const std::size_t all_bytes = bytes * static_cast<std::size_t>(ranks);
  if (bytes && operation.what != Operation::What::receive) {
    const std::size_t needed = reduce ? all_bytes : bytes;
    simulated::require_device_memory(operation.from, needed, "NCCL, send buffer");
  }
  if (bytes && operation.what != Operation::What::send) {
    const std::size_t needed = gather ? all_bytes : bytes;
    simulated::require_device_memory(operation.to, needed, "NCCL, receive buffer");
  }
  const Call call{comm, stream, operation};
  if (group_depth == 0) return launch_group({call});
  group.push_back(call);
  return ncclSuccess;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm ? comm->communicator->last_error() : "";
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {"/tmp/simulated-nccl-XXXXXX"};
  return mkdtemp(id->internal) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const bool known_config =
      !config || (config->size == sizeof(ncclConfig_t) && config->magic == config_magic);
  if (!comm || !known_config || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  const bool blocking = !config || config->blocking != 0;
  *comm = new ncclComm{std::make_shared<Communicator>(ranks, id.internal, rank, blocking)};
  return (*comm)->communicator->initialise();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!comm || !error) return ncclInvalidArgument;
  *error = comm->communicator->state();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return comm ? comm->communicator->finalise() : ncclInvalidArgument;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->communicator->destroy();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->communicator->abort();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  const std::vector<Call> calls = std::exchange(group, {});
  const ncclResult_t error = std::exchange(group_error, ncclSuccess);
  return error == ncclSuccess ? launch_group(calls) : error;
}

ncclResult_t ncclSend(const void* from,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, stream, {Operation::What::send, from, nullptr, count, type, peer});
}

ncclResult_t ncclRecv(void* to,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, stream, {Operation::What::receive, nullptr, to, count, type, peer});
}

ncclResult_t ncclAllGather(const void* from,
                           void* to,
                           std::size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return submit(comm, stream, {Operation::What::all_gather, from, to, count, type, -1});
}

ncclResult_t ncclReduceScatter(const void* from,
                               void* to,
                               std::size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t op,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return submit(comm, stream, {Operation::What::reduce_scatter, from, to, count, type, -1});
}
