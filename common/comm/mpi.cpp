// SPDX-License-Identifier: MIT
// Point-to-point messages alone: MPI's own reductions add in an order that depends on size and N.
#include <mpi.h>

#include <cstring>
#include <queue>
#include <set>

#include "comm/transport.hpp"
#include "compute/work.hpp"
#include "memory/throw_if.hpp"

namespace zero {
namespace {
/// Throws Error (communication) with MPI's words. rank: whom the call was for, -1: all.
void check_mpi(int code, int rank = -1) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, words, &length);
  std::replace(words, words + length, '\n', ' ');
  throw Error(ExitCode::communication,
              fmt::format("a message with {} failed: a rank is gone, or runs another build; MPI "
                          "says: {}",
                          rank < 0 ? "all ranks" : fmt::format("rank {}", rank), words));
}

/// A message's tag says what it is part of, in the 15 bits that any MPI has, and above them its
/// number among those from its rank to this one, as far as this MPI's tags reach.
constexpr int collectives = names_of<Collective>.size(), layers = (1 << 15) / collectives;
int tag_of(Collective of, int layer, int number) {
  return (number * layers + (layer + 1) % layers) * collectives + static_cast<int>(of);
}
std::string words_of(int tag) {
  const char* what = name_of(static_cast<Collective>(tag % collectives));
  return fmt::format("message {}, of {}", tag / collectives / layers,
                     words({.what = what, .layer = tag / collectives % layers - 1}));
}
/// After so many messages the numbers begin again.
int numbers() {
  void* last_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &last_tag, &found);
  return std::max(1, *static_cast<int*>(last_tag) / (collectives * layers));
}

/// Requests under way, and the ranks that they wait for.
struct Messages {
  struct Peer {
    int rank;
    int bytes;  // so many must come; 0: none
    int tag;  // what is due has it
  };
  std::vector<MPI_Request> requests;
  std::vector<Peer> peers;  // of each request

  /// Completes all of them. A call that blocks in MPI would spin on a core that the other rank may
  /// need, so this tests, yields 200 times, then sleeps 50 microseconds between tests. MPI copies
  /// bytes only in tests, a little in each: one of more than 5 microseconds has copied, and the
  /// next follows at once. Throws Error (communication) when a message fails, comes short or is
  /// another.
  void finish() {
    using Clock = std::chrono::steady_clock;
    const Working waiting;
    constexpr int yields = 200;
    constexpr auto short_test = std::chrono::microseconds(5);  // longer ones have copied bytes
    const auto count = static_cast<int>(requests.size());
    std::vector<MPI_Status> statuses(requests.size());
    std::vector<int> done(requests.size());
    for (std::int64_t tests = 0, idle = 0, left = count; left > 0; ++tests) {
      const auto start = Clock::now();
      int some = 0;  // have been completed by this test
      const int code = MPI_Testsome(count, requests.data(), &some, done.data(), statuses.data());
      idle = Clock::now() - start > short_test ? 0 : idle + 1;
      if (code != MPI_ERR_IN_STATUS) check_mpi(code);
      expect(some != MPI_UNDEFINED, "a request that is under way while not all are done");
      for (int i = 0; i < some; ++i) {
        const auto [rank, bytes, tag] = peers[done[i]];
        const int error = code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
        int kind = MPI_SUCCESS;
        MPI_Error_class(error, &kind);
        const bool has_tag = bytes > 0 && (kind == MPI_SUCCESS || kind == MPI_ERR_TRUNCATE);
        if (has_tag && statuses[i].MPI_TAG != tag) {
          throw Error(ExitCode::communication,
                      fmt::format("rank {} sent {}, where {} is due: every rank must call the same "
                                  "collectives in the same order",
                                  rank, words_of(statuses[i].MPI_TAG), words_of(tag)));
        }
        check_mpi(error, rank);
        int came = bytes;
        if (bytes > 0) MPI_Get_count(&statuses[i], MPI_BYTE, &came);
        throw_if(came != bytes, ExitCode::communication,
                 "rank {} sent {} bytes instead of {}: run the same build on every rank", rank,
                 came, bytes);
      }
      left -= some;
      if (left == 0) break;
      // Now and then yield all the same: a test may be long only because it has much to look at.
      if (idle == 0 && tests % yields > 0) continue;
      if (idle < yields) {
        std::this_thread::yield();
      } else {
        std::set<int> missing;
        for (int i = 0; i < count; ++i) {
          if (requests[i] != MPI_REQUEST_NULL) missing.insert(peers[i].rank);
        }
        waits_for(missing);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    requests.clear();
    peers.clear();
  }
};

/// A GPU's bytes pass through it: while one wave is exchanged, another is copied out or in.
struct Wave {
  explicit Wave(Device& host) : out(host, wave_bytes), in(host, wave_bytes) {}

  Buffer out, in;
  Mark copied_out, copied_in;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(Device& device, int size, std::int64_t longest)
      : longest_(longest), sent_(size), received_(size) {
    const bool on_gpu = device.type == DeviceType::cuda && size > 1;
    for (int i = 0; i < 2 && on_gpu; ++i) waves_.emplace_back(device.host());
  }

  void start(Kernels& on, Collective of, std::span<const Part> outgoing,
             std::span<const Part> incoming) override {
    const View first = incoming.front().elements;
    if (!first.on_gpu()) return start_on_host(of, outgoing, incoming);
    // Elements of a part, a wave: all ranks cut alike, so a wave's messages find each other.
    const std::int64_t piece = wave_bytes / bytes_of(first.dtype) / std::ssize(incoming);
    const auto cut = [&](const Part& part, std::int64_t w) {
      return part.elements.part(w * piece, std::min(piece, first.size - w * piece));
    };
    const auto in_buffer = [&](std::span<const Part> parts, std::int64_t w, const Buffer& buffer) {
      std::vector<Part> pieces;
      for (const Part& part : parts) {
        View view = cut(part, w);
        view.data = buffer.data() + std::ssize(pieces) * view.bytes();
        view.device = nullptr;
        pieces.push_back({view, part.rank});
      }
      return pieces;
    };
    const auto copy_out = [&](std::int64_t w) {
      Wave& wave = waves_[w % 2];
      const std::vector<Part> to = in_buffer(outgoing, w, wave.out);
      for (std::size_t i = 0; i < to.size(); ++i) on.copy(cut(outgoing[i], w), to[i].elements);
      wave.copied_out = on.record();
    };
    copy_out(0);
    for (std::int64_t w = 0; w * piece < first.size; ++w) {
      if ((w + 1) * piece < first.size) copy_out(w + 1);
      Wave& wave = waves_[w % 2];
      wait_for(wave.copied_in);  // of the wave that used this memory before
      wait_for(wave.copied_out);
      const std::vector<Part> in = in_buffer(incoming, w, wave.in);
      start_on_host(of, in_buffer(outgoing, w, wave.out), in);
      finish();
      for (std::size_t i = 0; i < in.size(); ++i) on.copy(in[i].elements, cut(incoming[i], w));
      wave.copied_in = on.record();
    }
  }

  void finish() override {
    if (under_way_.empty()) return;  // a GPU's waves have been waited for
    under_way_.front().finish();
    under_way_.pop();
    if (under_way_.empty()) outgoing_.finish();
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
  void start_on_host(Collective of, std::span<const Part> outgoing,
                     std::span<const Part> incoming) {
    const auto begin = [&](auto call, Messages& messages, const View& part, int rank, int& number) {
      const bool comes = &messages != &outgoing_;
      for (std::int64_t at = 0; at < part.bytes(); at += longest_) {
        const auto count = static_cast<int>(std::min(longest_, part.bytes() - at));
        const int tag = tag_of(of, part.layer, number);
        number = (number + 1) % numbers_;
        messages.peers.push_back({rank, comes ? count : 0, tag});
        MPI_Request* request = &messages.requests.emplace_back(MPI_REQUEST_NULL);
        // With the tag that is due alone, another message would never come: a wait without end.
        check_mpi(call(part.data + at, count, MPI_BYTE, rank, comes ? MPI_ANY_TAG : tag,
                       MPI_COMM_WORLD, request),
                  rank);
      }
    };
    under_way_.emplace();
    for (const auto& [part, from] : incoming) {
      begin(MPI_Irecv, under_way_.back(), part, from, received_[from]);
    }
    for (const auto& [part, to] : outgoing) begin(MPI_Isend, outgoing_, part, to, sent_[to]);
  }

  const std::int64_t longest_;  // bytes
  const int numbers_ = numbers();
  std::vector<int> sent_, received_;  // the next message's number, by rank
  std::vector<Wave> waves_;  // two, on a GPU
  Messages outgoing_;  // of all that is under way
  std::queue<Messages> under_way_;  // what comes, of each start()
};
}  // namespace

std::unique_ptr<Transport> make_mpi_transport(Device& device, int size, std::int64_t longest) {
  return std::make_unique<MpiTransport>(device, size, longest);
}
}  // namespace zero
