// SPDX-License-Identifier: MIT
// NCCL on simulated GPUs. Each pair of ranks has a Unix domain socket. An operation runs on the
// thread of the stream that it was given to. As in the real library a communicator's operations
// follow each other in the order of their calls, whatever their streams. An operation whose peer is
// gone never ends; then ncclCommGetAsyncError() gives ncclRemoteError.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/dtype.hpp"
#include "nccl.h"

namespace {
std::atomic<ncclResult_t> async_error = ncclSuccess;

/// Is the end of an operation whose peer is gone: sets the asynchronous error, and waits for ever.
[[noreturn]] void never_end() {
  async_error = ncclRemoteError;
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

zero::Dtype dtype_of(ncclDataType_t type) {
  if (type == ncclFloat32) return zero::Dtype::fp32;
  return type == ncclFloat16 ? zero::Dtype::fp16 : zero::Dtype::bf16;
}

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  return count * zero::bytes_of(dtype_of(type));
}

std::byte* bytes(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

/// What is still to be sent to a rank, or received from it.
struct Message {
  int socket;
  short direction;  // POLLIN or POLLOUT
  std::byte* data;
  std::size_t left;  // bytes

  void advance() {
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const ssize_t some =
        direction == POLLIN ? recv(socket, data, left, flags) : send(socket, data, left, flags);
    if (some < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (some <= 0) never_end();
    data += some, left -= some;
  }
};

/// Carries out all messages at a time, but those of one socket and direction one after another.
void exchange(std::vector<Message> messages) {
  while (true) {
    std::set<std::pair<int, short>> busy;
    std::vector<pollfd> sockets;
    std::vector<Message*> next;
    for (Message& message : messages) {
      const auto [socket, direction] = std::pair(message.socket, message.direction);
      if (message.left == 0 || !busy.emplace(socket, direction).second) continue;
      next.push_back(&message);
      sockets.push_back({socket, direction, 0});
    }
    if (next.empty()) return;
    poll(sockets.data(), sockets.size(), -1);
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (sockets[i].revents) next[i]->advance();
    }
  }
}

/// Returns a socket on which `call`, bind or connect, took the address `name`; -1 if it failed. The
/// address is no file, so a rank that is killed leaves nothing behind.
int socket_at(const std::string& name, decltype(&connect) call) {
  sockaddr_un address{AF_UNIX, {}};
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name.c_str());
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (call(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return made;
  close(made);
  return -1;
}
}  // namespace

struct ncclComm {
  Message to(int peer, const void* data, std::size_t size) const {
    return {sockets.at(peer), POLLOUT, bytes(data), size};
  }
  Message from(int peer, void* data, std::size_t size) const {
    return {sockets.at(peer), POLLIN, bytes(data), size};
  }

  /// Connects to all lower ranks, which may not listen yet, and accepts all higher ones.
  void connect_all(const std::string& id, int listener) {
    for (int peer = 0; peer < rank; ++peer) {
      while ((sockets[peer] = socket_at(id + "/" + std::to_string(peer), connect)) < 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      exchange({to(peer, &rank, sizeof rank)});
    }
    for (int calls = rank + 1; calls < ranks; ++calls) {
      const int caller = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = 0;
      exchange({{caller, POLLIN, bytes(&peer), sizeof peer}});
      sockets.at(peer) = caller;
    }
  }

  void queue(cudaStream_t stream, std::function<void()> work) {
    static const char* const broken = std::getenv("SIMULATED_NCCL_BREAKS");
    static int begun = 0;
    if (broken && ++begun == std::atoi(broken)) work = never_end;
    cudaStreamWaitEvent(stream, last);
    simulated::enqueue(stream, std::move(work));
    cudaEventRecord(last, stream);
  }

  /// Slice s starts at rank s + 1, and each rank on the way to rank s adds its own to what it gets:
  /// another order than by rank, and a rounding at each hop.
  template <class T> void reduce_scatter(const T* all, T* mine, std::size_t count) const {
    const auto slice = [&](int behind) {  // of the rank so many places before this one
      return all + (rank + ranks - behind) % ranks * count;
    };
    std::vector<T> sum(slice(1 % ranks), slice(1 % ranks) + count);
    std::vector<T> arriving(count);
    for (int hop = 1; hop < ranks; ++hop) {
      exchange({to((rank + 1) % ranks, sum.data(), count * sizeof(T)),
                from((rank + ranks - 1) % ranks, arriving.data(), count * sizeof(T))});
      const T* const own = slice((hop + 1) % ranks);
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = zero::narrow<T>(zero::widen(arriving[i]) + zero::widen(own[i]));
      }
    }
    std::copy(sum.begin(), sum.end(), mine);
  }

  /// A peer's first message takes 12 MiB for each block, as over NVLink. False: no memory is left.
  bool has_buffers(int peer) {
    void*& buffer = buffers.at(peer);
    return buffer || !cudaMalloc(&buffer, std::size_t{12} * simulated::message_blocks << 20);
  }

  int ranks, rank;
  std::vector<int> sockets;  // by peer; for this rank -1
  std::vector<void*> buffers = std::vector<void*>(ranks);
  cudaEvent_t last = nullptr;  // recorded after the last operation
};

namespace {
/// What the calling thread has submitted since ncclGroupStart.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
};
thread_local Group group;

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const Message& message) {
  simulated::require_device_memory(message.data, message.left, "NCCL");
  if (!group.messages.empty() && (comm != group.comm || stream != group.stream)) {
    simulated::die("NCCL: a group with more than one communicator or stream");
  }
  ncclGroupStart();
  group.comm = comm;
  group.stream = stream;
  group.messages.push_back(message);
  return ncclGroupEnd();
}
}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "unhandled cuda error";
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  return *error = async_error, ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "simulated-nccl-%x%x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  simulated::message_blocks = ranks > 1 ? config->maxCTAs : 0;
  const std::string name = id.internal;
  const int listener = socket_at(name + "/" + std::to_string(rank), bind);
  if (listen(listener, ranks) != 0) simulated::die("NCCL cannot listen: %s", std::strerror(errno));
  *comm = new ncclComm{ranks, rank, std::vector<int>(ranks, -1)};
  cudaEventCreateWithFlags(&(*comm)->last, cudaEventDisableTiming);
  (*comm)->connect_all(name, listener);
  close(listener);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  cudaStreamWaitEvent(nullptr, comm->last);
  cudaEventDestroy(comm->last);
  for (const int socket : comm->sockets) {
    if (socket >= 0) close(socket);
  }
  for (void* const buffer : comm->buffers) cudaFree(buffer);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++group.depth, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) simulated::die("NCCL: no group was started");
  if (--group.depth > 0 || group.messages.empty()) return ncclSuccess;
  group.comm->queue(group.stream,
                    [messages = std::exchange(group.messages, {})] { exchange(messages); });
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (!comm->has_buffers(peer)) return ncclUnhandledCudaError;
  return submit(comm, stream, comm->to(peer, from, bytes_of(count, type)));
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!comm->has_buffers(peer)) return ncclUnhandledCudaError;
  return submit(comm, stream, comm->from(peer, to, bytes_of(count, type)));
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = bytes_of(count, type);
  if (from != bytes(to) + comm->rank * size) simulated::die("NCCL: an all-gather not in place");
  ncclGroupStart();
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (peer == comm->rank) continue;
    ncclSend(from, count, type, peer, comm, stream);
    ncclRecv(bytes(to) + peer * size, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  simulated::require_device_memory(from, comm->ranks * bytes_of(count, type), "NCCL");
  simulated::require_device_memory(to, bytes_of(count, type), "NCCL");
  zero::with_type(dtype_of(type), [&]<class T>(T) {
    comm->queue(stream, [=] {
      comm->reduce_scatter(static_cast<const T*>(from), static_cast<T*>(to), count);
    });
  });
  return ncclSuccess;
}
