// SPDX-License-Identifier: MIT
// Uses MPI for messages only: MPI chooses the order in which its own reductions add the ranks.
#include <mpi.h>

#include <cstring>
#include <set>

#include "comm/transport.hpp"
#include "compute/watchdog.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
using Clock = std::chrono::steady_clock;
/// Throws Error (communication) in MPI's words unless the call succeeded. rank: the peer.
void check_mpi(int code, int rank) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, words, &length);
  std::replace(words, words + length, '\n', ' ');
  throw_error(ExitCode::communication,
              "a message with rank {} failed: a rank is gone, or runs another build; MPI says: {}",
              rank, words);
}

/// A tag holds the collective and the layer. Every MPI has 15 bits for it, so layer + 1 (0: no
/// layer) is taken modulo distinct_layers, 8192.
constexpr int collectives = names_of<Collective>.size(), distinct_layers = (1 << 15) / collectives;
int tag_of(Collective of, int layer) {
  return (layer + 1) % distinct_layers * collectives + static_cast<int>(of);
}
std::string describe_tag(int tag) {
  return describe({.what = name_of(static_cast<Collective>(tag % collectives)),
                   .layer = tag / collectives - 1});
}
MPI_Datatype type_of(Dtype dtype) { return dtype == Dtype::fp32 ? MPI_FLOAT : MPI_UINT16_T; }

/// Checks a message that has ended. error: its MPI code. Throws Error (communication) if it failed,
/// or was received without the tag `due` or the size of peer.in.
void check(const MPI_Status& status, int error, const Peer& peer, bool received, int due) {
  int kind = MPI_SUCCESS, count = 0;
  MPI_Error_class(error, &kind);
  // The status of a sent message has no defined tag: Open MPI leaves -1 there.
  const bool has_tag = received && (kind == MPI_SUCCESS || kind == MPI_ERR_TRUNCATE);
  if (has_tag && status.MPI_TAG != due)
    throw_error(ExitCode::communication,
                "rank {} sent {}, where {} is due: every rank must call the same collectives in "
                "the same order",
                peer.rank, describe_tag(status.MPI_TAG), describe_tag(due));
  check_mpi(error, peer.rank);
  // A negative count means that the bytes are not a whole number of elements.
  if (received) MPI_Get_count(&status, type_of(peer.in.dtype), &count);
  if (received && count != peer.in.size)
    throw_error(ExitCode::communication,
                "rank {} sent {} elements instead of {}: run the same build on every rank",
                peer.rank, std::max(count, 0), peer.in.size);
}

/// Yields after every fourth MPI_Testsome: a call that blocks in MPI would spin on a core that
/// another rank may need. MPI moves bytes only inside that call, which then takes over 5 us. When
/// for 1 ms no call has moved bytes, calls on_standstill() and sleeps instead of yielding.
struct Backoff {
  void rest(Clock::time_point test_began, const auto& on_standstill) {
    const auto now = Clock::now();
    if (now - test_began > std::chrono::microseconds(5)) moved = now;
    if (++tests % 4 > 0) return;
    if (now - moved < std::chrono::milliseconds(1)) return std::this_thread::yield();
    on_standstill();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  Clock::time_point moved = Clock::now();
  int tests = 0;
};

/// Waits for messages: requests[2 i] receives from peer i, with `tag`, and requests[2 i + 1] sends.
void complete(std::vector<MPI_Request> requests, std::span<const Peer> peers, int tag) {
  const TaskScope waiting;
  const auto all = static_cast<int>(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  std::vector<int> ended(requests.size());
  const auto tell_the_watchdog = [&] {
    std::set<int> late;
    for (int i = 0; i < all; ++i) {
      if (requests[i] != MPI_REQUEST_NULL) late.insert(peers[i / 2].rank);
    }
    waits_for(late);
  };
  Backoff backoff;
  for (int left = all, some = 0; left > 0; left -= some) {
    const auto began = Clock::now();
    const int code = MPI_Testsome(all, requests.data(), &some, ended.data(), statuses.data());
    if (code != MPI_ERR_IN_STATUS) check_mpi(code, peers[0].rank);  // the peer is unknown: name one
    for (int i = 0; i < some; ++i) {
      // MPI sets MPI_ERROR only with MPI_ERR_IN_STATUS.
      const int error = code == MPI_SUCCESS ? code : statuses[i].MPI_ERROR;
      check(statuses[i], error, peers[ended[i] / 2], ended[i] % 2 == 0, tag);
    }
    if (some < left) backoff.rest(began, tell_the_watchdog);
  }
}

class MpiTransport : public Transport {
 public:
  MpiTransport(Device& device, std::int64_t room) {
    const bool on_gpu = device.type == DeviceType::cuda && room > 0;
    for (int i = 0; i < 2 && on_gpu; ++i) on_host_.emplace_back(device.host(), room);
  }

  void exchange(Kernels& on, Collective of, std::span<const Peer> peers) override {
    if (peers[0].in.on_gpu()) return exchange_on_host(on, of, peers);
    const int tag = tag_of(of, peers[0].out.layer);
    std::vector<MPI_Request> requests(2 * peers.size());
    MPI_Request* next = requests.data();
    for (const auto& [rank, out, in] : peers) {
      const MPI_Datatype type = type_of(out.dtype);
      // Session::communicator() refuses parts whose sizes are no int.
      const auto come = static_cast<int>(in.size), go = static_cast<int>(out.size);
      // A receive of the expected tag would wait for ever if the peer has sent another collective.
      check_mpi(MPI_Irecv(in.data, come, type, rank, MPI_ANY_TAG, MPI_COMM_WORLD, next++), rank);
      check_mpi(MPI_Isend(out.data, go, type, rank, tag, MPI_COMM_WORLD, next++), rank);
    }
    complete(std::move(requests), peers, tag);
  }

  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string name(text, std::strcspn(text, ",\n"));
    const std::string label = " Version:\t";  // MPICH Version:\t4.0.2
    const auto at = name.find(label);
    return at == std::string::npos ? name : name.replace(at, label.size(), 1, ' ');
  }

 private:
  /// Copies a GPU's elements to the host, exchanges them there, and queues copies of what came.
  void exchange_on_host(Kernels& on, Collective of, std::span<const Peer> peers) {
    std::vector<Peer> staged;
    for (const auto& [rank, out, in] : peers) {
      const auto at = [&](Buffer& buffer) {  // all views have one size (transport.hpp)
        return View{.data = buffer.data() + std::ssize(staged) * in.bytes(),
                    .size = in.size,
                    .dtype = in.dtype,
                    .layer = out.layer};
      };
      const View sent = at(on_host_[0]);
      on.copy(out, sent);
      staged.push_back({rank, sent, at(on_host_[1])});
    }
    wait_for(on.record());
    // on_host_[1] may still be read by the previous call, if it was on another stream.
    wait_for(copied_in_);
    exchange(on, of, staged);
    for (std::size_t i = 0; i < staged.size(); ++i) on.copy(staged[i].in, peers[i].in);
    copied_in_ = on.record();
  }

  std::vector<Buffer> on_host_;  // for a GPU: elements on their way out, and on their way in
  DeviceEventPtr copied_in_;  // passed when the last call's elements have left on_host_[1]
};
}  // namespace

std::unique_ptr<Transport> make_mpi_transport(Device& device, std::int64_t room) {
  return std::make_unique<MpiTransport>(device, room);
}
}  // namespace zero
