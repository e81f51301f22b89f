// SPDX-License-Identifier: MIT
// NCCL on simulated GPUs. Each pair of ranks has a Unix domain socket; the thread of the stream
// that an operation was given to carries it out. As in the real library the operations of a
// communicator follow each other in the order of their calls, whatever their streams, and one
// whose peer is gone never ends.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/dtype.hpp"
#include "nccl.h"
#include "simulated_cuda.hpp"

namespace {
thread_local std::string last_error;

ncclResult_t failure(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

using Type = ncclDataType_t;

std::size_t bytes_of(Type type) {
  return type == ncclFloat32 ? 4 : 2;
}

template <class T>
void add(void* sum, const void* term, std::size_t count) {
  auto* const to = static_cast<T*>(sum);
  const auto* const from = static_cast<const T*>(term);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = zero::narrow<T>(zero::widen(to[i]) + zero::widen(from[i]));
  }
}

void add(Type type, void* sum, const void* term, std::size_t count) {
  if (type == ncclFloat32) return add<float>(sum, term, count);
  if (type == ncclFloat16) return add<zero::Fp16>(sum, term, count);
  add<zero::Bf16>(sum, term, count);
}

/// One way between two ranks: first the size, since ranks that disagree on it are wrong, then the
/// bytes.
struct Message {
  int socket;
  short direction;  // POLLIN or POLLOUT
  std::byte* data;
  std::size_t size;
  std::size_t announced = size;
  std::size_t moved = 0;  // of both

  bool done() const { return moved == sizeof announced + size; }

  /// Moves what can be moved now.
  void advance() {
    auto* const head = reinterpret_cast<std::byte*>(&announced);
    const bool in_head = moved < sizeof announced;
    std::byte* const at = in_head ? head + moved : data + (moved - sizeof announced);
    const std::size_t left = (in_head ? sizeof announced : sizeof announced + size) - moved;
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const ssize_t some = direction == POLLIN ? recv(socket, at, left, flags)
                                             : send(socket, at, left, flags);
    if (some < 0 && (errno == EAGAIN || errno == EINTR)) return;
    while (some <= 0) std::this_thread::sleep_for(std::chrono::hours(1));  // the peer is gone
    moved += static_cast<std::size_t>(some);
    if (moved >= sizeof announced && announced != size) {
      simulated::die("NCCL: a rank expects %zu bytes, its peer sends %zu", size, announced);
    }
  }
};

/// All at once, but in order on each socket and direction.
void exchange(std::vector<Message> messages) {
  while (true) {
    std::vector<pollfd> sockets;
    std::vector<Message*> next;
    for (Message& message : messages) {
      bool first = !message.done();
      for (const Message* before : next) {
        first &= before->socket != message.socket || before->direction != message.direction;
      }
      if (!first) continue;
      next.push_back(&message);
      sockets.push_back({message.socket, message.direction, 0});
    }
    if (next.empty()) return;
    poll(sockets.data(), sockets.size(), -1);
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (sockets[i].revents) next[i]->advance();
    }
  }
}

/// An address that is no file: nothing is left behind by a rank that is killed.
struct Address {
  explicit Address(const std::string& name) {
    std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name.c_str());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{AF_UNIX, {}};
};

int new_socket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}
}  // namespace

struct ncclComm {
  Message to(int peer, const std::byte* data, std::size_t bytes) const {
    return {sockets.at(peer), POLLOUT, const_cast<std::byte*>(data), bytes};
  }
  Message from(int peer, std::byte* data, std::size_t bytes) const {
    return {sockets.at(peer), POLLIN, data, bytes};
  }

  /// Calls the ranks below, which may not listen yet, and is called by those above.
  void connect_all(const std::string& id, int listener) {
    for (int peer = 0; peer < rank; ++peer) {
      const Address address(id + "/" + std::to_string(peer));
      sockets[peer] = new_socket();
      while (connect(sockets[peer], address.get(), sizeof address) != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      exchange({to(peer, reinterpret_cast<const std::byte*>(&rank), sizeof rank)});
    }
    for (int calls = rank + 1; calls < ranks; ++calls) {
      const int caller = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = 0;
      exchange({{caller, POLLIN, reinterpret_cast<std::byte*>(&peer), sizeof peer}});
      sockets.at(peer) = caller;
    }
  }

  void queue(cudaStream_t stream, std::function<void()> work) {
    cudaStreamWaitEvent(stream, last);
    simulated::enqueue(stream, std::move(work));
    cudaEventRecord(last, stream);
  }

  /// Slice s starts at rank s + 1, and each rank on the way to rank s adds its own to what it gets:
  /// another order than by rank, and a rounding at each hop.
  void reduce_scatter(const std::byte* all, std::byte* mine, std::size_t count, Type type) const {
    const std::size_t bytes = count * bytes_of(type);
    const auto slice = [&](int behind) {  // that many places behind this rank
      return all + (rank + ranks - behind) % ranks * bytes;
    };
    std::vector<std::byte> sum(slice(1 % ranks), slice(1 % ranks) + bytes);
    std::vector<std::byte> arriving(bytes);
    for (int hop = 1; hop < ranks; ++hop) {
      exchange({to((rank + 1) % ranks, sum.data(), bytes),
                from((rank + ranks - 1) % ranks, arriving.data(), bytes)});
      add(type, arriving.data(), slice((hop + 1) % ranks), count);
      sum.swap(arriving);
    }
    std::memcpy(mine, sum.data(), bytes);
  }

  int ranks;
  int rank;
  int device_taken;  // a socket whose name says that this rank has the device
  std::vector<int> sockets;  // by peer; -1: this rank
  cudaEvent_t last = nullptr;  // all operations so far are done
};

namespace {
/// What the calling thread has said since ncclGroupStart.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
};
thread_local Group group;

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const Message& message) {
  simulated::require_device_memory(message.data, message.size, "NCCL");
  if (!group.messages.empty() && (comm != group.comm || stream != group.stream)) {
    simulated::die("NCCL: a group with more than one communicator or stream");
  }
  ncclGroupStart();
  group.comm = comm;
  group.stream = stream;
  group.messages.push_back(message);
  return ncclGroupEnd();
}

const std::byte* bytes(const void* data) {
  return static_cast<const std::byte*>(data);
}
std::byte* bytes(void* data) {
  return static_cast<std::byte*>(data);
}
}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  if (result == ncclSystemError) return "unhandled system error";
  if (result == ncclInvalidArgument) return "invalid argument";
  return result == ncclInvalidUsage ? "invalid usage" : "no error";
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "simulated-nccl-%x%x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* place, int ranks, ncclUniqueId id, int rank) {
  if (rank < 0 || rank >= ranks) return failure(ncclInvalidArgument, "invalid rank");
  const std::string name = id.internal;
  const char* const host = std::getenv("NCCL_HOSTID");
  int device = 0;
  cudaGetDevice(&device);
  const Address mine(name + "/" + std::to_string(rank));
  const Address taken(name + "/device/" + (host ? host : "") + "/" + std::to_string(device));
  auto* const comm = new ncclComm{ranks, rank, new_socket(), std::vector<int>(ranks, -1)};
  const int listener = new_socket();
  if (bind(comm->device_taken, taken.get(), sizeof taken) != 0) {
    return failure(ncclInvalidUsage,
                   "Duplicate GPU detected : on device " + std::to_string(device));
  }
  if (bind(listener, mine.get(), sizeof mine) != 0 || listen(listener, ranks) != 0) {
    return failure(ncclSystemError, std::string("cannot listen: ") + std::strerror(errno));
  }
  cudaEventCreateWithFlags(&comm->last, cudaEventDisableTiming);
  comm->connect_all(name, listener);
  close(listener);
  *place = comm;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  cudaEventSynchronize(comm->last);
  cudaEventDestroy(comm->last);
  close(comm->device_taken);
  for (const int socket : comm->sockets) {
    if (socket >= 0) close(socket);
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return failure(ncclInvalidUsage, "no group was started");
  if (--group.depth > 0 || group.messages.empty()) return ncclSuccess;
  group.comm->queue(group.stream,
                    [messages = std::exchange(group.messages, {})] { exchange(messages); });
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, std::size_t count, Type type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, stream, comm->to(peer, bytes(from), count * bytes_of(type)));
}

ncclResult_t ncclRecv(void* to, std::size_t count, Type type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, stream, comm->from(peer, bytes(to), count * bytes_of(type)));
}

/// In place only, as the project uses it.
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, Type type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = count * bytes_of(type);
  if (bytes(from) != bytes(to) + comm->rank * size) {
    return failure(ncclInvalidArgument, "an all-gather that is not in place is not simulated");
  }
  ncclGroupStart();
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (peer == comm->rank) continue;
    ncclSend(from, count, type, peer, comm, stream);
    ncclRecv(bytes(to) + peer * size, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, Type type,
                               ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  simulated::require_device_memory(from, comm->ranks * count * bytes_of(type), "NCCL");
  simulated::require_device_memory(to, count * bytes_of(type), "NCCL");
  comm->queue(stream, [=] { comm->reduce_scatter(bytes(from), bytes(to), count, type); });
  return ncclSuccess;
}
