// SPDX-License-Identifier: MIT
// Tests collectives with exact inputs, for which every order of addition gives the same bits, and
// with inputs for which only rank order gives the right bits. Then it tests what collectives count,
// what they refuse, and what they wait for.
#include "comm/communicator.hpp"

#include "report/prediction.hpp"
#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// Element i of a rank's vector: N, the number of ranks, times a small integer, so that sums and
/// means are exact in every dtype. The parts of a long vector differ.
float integer(int rank, std::int64_t i) {
  return static_cast<float>(((i * 7 + i / 1000 + rank * 3) % 16 - 8) * ranks().size);
}

/// The mean of value(rank, i) over the ranks: the values are rounded to dtype and added in rank
/// order in fp32; the sum is divided in fp32 and rounded to dtype once.
float mean_of(Dtype dtype, auto value, std::int64_t i) {
  float sum = rounded(dtype, value(0, i));
  for (int r = 1; r < ranks().size; ++r) sum += rounded(dtype, value(r, i));
  return rounded(dtype, sum / static_cast<float>(ranks().size));
}

/// Elements per rank. The last are too many for MPI to send before the receiver asks for them.
const std::vector<std::int64_t> sizes{1, 2, 3, 8, 1000, 1023, 1025, (1 << 18) + 1001};

/// A communicator for vectors of up to `own` elements per rank, and a stream.
struct Talk {
  explicit Talk(Dtype dtype = Dtype::fp32, std::int64_t own = sizes.back())
      : owned(ranks().communicator({.dtype = dtype},
                                   Layout({own * ranks().size}, ranks().rank, ranks().size))) {}

  const std::unique_ptr<Communicator> owned;
  Communicator& comm = *owned;
  Stream stream{"test", device()};
};

/// This rank's two sums, in its device's memory.
Sums sums_of(double loss, double squares) {
  Sums sums(device());
  sums.totals = {loss, squares};
  const double both[] = {loss, squares};
  if (on_gpus()) device().copy(sums.on_gpu.data(), both, sizeof(both));
  return sums;
}

/// A vector of `own` elements per rank, filled with value(rank, i).
struct Vector {
  Vector(Dtype dtype, std::int64_t own, auto value)
      : tensor(device(), Kind::gradients, dtype, own * ranks().size), own(own) {
    fill(tensor.view(), [&](std::int64_t i) { return value(ranks().rank, i); });
  }
  View full() { return tensor.view(); }
  View mine() { return tensor.view().part(ranks().rank * own, own); }

  Tensor tensor;
  std::int64_t own;
};

/// Checks reduce_scatter_mean and all_reduce_mean of value(rank, i). sizes: elements per rank.
void check_means(Communicator& comm, Dtype dtype, const std::vector<std::int64_t>& sizes,
                 auto value) {
  Stream stream("test", device());
  for (const std::int64_t own : sizes) {
    INFO("dtype ", std::string(name_of(dtype)), ", ", own, " elements per rank");
    Vector vector(dtype, own, value);
    Tensor added(device(), Kind::gradients, dtype, own);
    fill(added.view(), 3);
    comm.reduce_scatter_mean(stream, vector.full(), added.view(), Write::add);
    comm.all_reduce_mean(stream, vector.full());
    stream.synchronise();
    std::vector<float> means;
    for (std::int64_t i = 0; i < vector.full().size; ++i) {
      means.push_back(mean_of(dtype, value, i));
    }
    check_same_bits(values(vector.full()), means, "mean");
    for (float& mean : means) mean = rounded(dtype, mean + 3);
    const auto mine = means.begin() + ranks().rank * own;
    check_same_bits(values(added.view()), {mine, mine + own}, "sum");
  }
}
}  // namespace

TEST_CASE("reduce_scatter_mean averages and all_gather spreads, exactly") {
  for (const Dtype dtype : dtypes) check_means(Talk(dtype).comm, dtype, sizes, integer);
}

TEST_CASE("messages find room where a run takes all of a GPU that it may") {
  if (!on_gpus() || ranks().choice.sharing > 1) return;
  const std::int64_t own = 1000, vector = 4 * own * ranks().size;
  const Talk talk(Dtype::fp32, own);
  const std::int64_t kept = bytes_for_libraries(ranks().size - 1);
  const Buffer taken(device(), Kind::gradients, device().available() - kept - vector, true);
  check_means(talk.comm, Dtype::fp32, {own}, integer);
}

TEST_CASE("two streams talk in turn, and the first one's GPU is late") {
  Vector first(Dtype::fp32, 1000, integer);
  Vector second(Dtype::fp32, 1000, [](int rank, std::int64_t) { return 20.0f + rank; });
  Talk talk;
  setenv("SIMULATED_CUDA_DELAY_US", "20000", 1);  // only a simulated GPU reads it
  Stream late("late", device());
  unsetenv("SIMULATED_CUDA_DELAY_US");
  talk.comm.all_gather(late, first.mine(), first.full());
  talk.comm.all_gather(talk.stream, second.mine(), second.full());
  late.synchronise();
  talk.stream.synchronise();
  const std::vector<float> firsts = values(first.full()), seconds = values(second.full());
  for (std::int64_t i = 0; i < std::ssize(firsts); ++i) {
    const int rank = static_cast<int>(i / 1000);
    CHECK(firsts[i] == integer(rank, i));
    CHECK(seconds[i] == 20.0f + rank);
  }
}

TEST_CASE("a product leaves NCCL room beside it, or a simulated GPU ends the program") {
  if (!on_gpus()) return;
  Talk talk;
  Tensor x(device(), Kind::data, Dtype::fp32, 3);
  fill(x.view(), 2);
  const View factors = x.view().part(0, 2), product = x.view().part(2, 1);
  talk.stream.kernels().reserve_products(product_room_bytes);
  talk.stream.kernels().linear_forward({1, 2, 1, false}, factors, factors, product, false);
  talk.stream.synchronise();
  CHECK(values(product)[0] == 8);
}

TEST_CASE("the ranks are added in rank order, in fp32, and rounded once") {
  const auto value = [](int rank, std::int64_t i) {
    const Generator random(static_cast<std::uint64_t>(rank), RandomStream::inputs);
    // Magnitudes from 2^-6 to 2^6, for which another order gives other bits in many elements.
    return std::ldexp(random.uniform(i), static_cast<int>((i * 5 + rank * 7) % 13) - 6);
  };
  const auto backwards = [&](int r, std::int64_t i) { return value(ranks().size - 1 - r, i); };
  int other_order = 0;
  for (int i = 0; i < 500 * ranks().size; ++i) {
    other_order += mean_of(Dtype::fp32, backwards, i) != mean_of(Dtype::fp32, value, i);
  }
  // The order of two ranks never matters. With more, these inputs must show it.
  CHECK((other_order > 100) == (ranks().size > 2));
  for (const Dtype dtype : dtypes) check_means(Talk(dtype).comm, dtype, {500}, value);
}

TEST_CASE("await_all_reduced adds the ranks' sums in rank order, to the same bits on all ranks") {
  Talk talk;
  Sums mine = sums_of(0.1 * (ranks().rank + 1), 1e-3 / (ranks().rank + 1));
  const Totals totals = talk.comm.await_all_reduced(talk.stream, mine);
  double loss = 0, squares = 0;
  for (int r = 0; r < ranks().size; ++r) {
    loss += 0.1 * (r + 1);
    squares += 1e-3 / (r + 1);
  }
  CHECK(totals.loss == loss);
  CHECK(totals.squares == squares);
}

TEST_CASE("what is sent is counted where it leaves, with its padding, under its phase") {
  constexpr std::int64_t own = 1002;
  Talk talk(Dtype::bf16);
  if (!talk.comm.counts()) return;
  const std::int64_t others = ranks().size - 1;
  Vector vector(Dtype::bf16, own, integer);
  View full = vector.full();
  full.used = full.size - 3;  // the last rank's part ends in 3 elements of padding
  const View mine = full.part(ranks().rank * own, own);
  here.phase = Phase::backward;
  talk.comm.reduce_scatter_mean(talk.stream, full, mine);
  here.phase = Phase::update;
  talk.comm.all_gather(talk.stream, mine, full);
  here.phase = Phase::setup;
  const Sent& sent = talk.comm.sent();
  const auto of = [&](Collective collective, Phase phase) {
    return sent.elements[collective][phase];
  };
  CHECK(of(Collective::reduce_scatter, Phase::backward) == others * own);
  CHECK(of(Collective::all_gather, Phase::update) == others * own);
  CHECK(of(Collective::all_gather, Phase::backward) == 0);
  const bool last = ranks().rank == ranks().size - 1;
  // All others send these 3 to the last rank to reduce; it sends them to all others in the gather.
  CHECK(sent.padding == (ranks().size == 1 ? 0 : last ? 3 * others : 3));
}

TEST_CASE("a rank that comes late is waited for, and finds what was sent to it") {
  Talk talk;
  Vector vector(Dtype::fp32, sizes.back(), integer);
  Tensor own(device(), Kind::gradients, Dtype::fp32, vector.own);
  if (ranks().rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  talk.comm.reduce_scatter_mean(talk.stream, vector.full(), own.view());
  talk.stream.synchronise();
  fill(vector.full(), 99);  // after a reduction its input may be overwritten
  Sums mine = sums_of(1, 0);
  CHECK(talk.comm.await_all_reduced(talk.stream, mine).loss == ranks().size);
  std::vector<float> expected(vector.own);
  for (std::int64_t i = 0; i < vector.own; ++i) {
    expected[i] = mean_of(Dtype::fp32, integer, ranks().rank * vector.own + i);
  }
  check_same_bits(values(own.view()), expected, "element");
}

TEST_CASE("wrong sizes and dtypes are refused before anything is sent") {
  Talk talk(Dtype::fp32, 8);
  Communicator& comm = talk.comm;
  Stream& stream = talk.stream;
  Vector vector(Dtype::fp32, 8, integer), larger(Dtype::fp32, 16, integer);
  const auto reduce = [&](View full, View own) { comm.reduce_scatter_mean(stream, full, own); };
  CHECK_THROWS_AS(reduce(vector.full(), vector.mine().part(0, 7)), std::logic_error);
  Vector bf16(Dtype::bf16, 8, integer);
  CHECK_THROWS_AS(reduce(vector.full(), bf16.mine()), std::logic_error);
  CHECK_THROWS_AS(reduce(bf16.full(), bf16.mine()), std::logic_error);
  if (ranks().size == 1) return;  // one rank alone receives nothing: any size fits
  CHECK_THROWS_AS(reduce(larger.full(), larger.mine()), std::logic_error);
  const View uneven = vector.full().part(0, vector.full().size - 1);
  CHECK_THROWS_AS(comm.all_gather(stream, vector.mine(), uneven), std::logic_error);
}

TEST_CASE("another collective of as many bytes is told, by name, from the one that is due") {
  using enum Collective;
  using Call = std::pair<Collective, int>;  // collective, layer
  const int rank = ranks().rank;
  if (ranks().size == 1 || rank > 1) return;
  for (const auto& calls : {std::array{Call(all_gather, 3), Call(reduce_scatter, 3)},
                            {Call(all_gather, 2), Call(all_gather, 3)},
                            {Call(sums, -1), Call(gather, -1)}}) {
    Communicator comm(rank, 2, make_mpi_transport(cpu()), cpu(), Dtype::fp32, 8);
    Stream stream("test", cpu());
    Tensor tensor(cpu(), Kind::gradients, Dtype::fp32, 8);
    View full = tensor.view();
    full.layer = calls[rank].second;
    const View own = full.part(4 * rank, 4);
    Sums two(cpu());
    const auto named = [&](int r) {
      return describe({.what = name_of(calls[r].first), .layer = calls[r].second});
    };
    const auto said = fmt::format("rank {} sent {}, where {} is due: every rank must call the same",
                                  1 - rank, named(1 - rank), named(rank));
    check_refused(ExitCode::communication, {said}, [&] {
      if (calls[rank].first == reduce_scatter) comm.reduce_scatter_mean(stream, full, own);
      if (calls[rank].first == all_gather) comm.all_gather(stream, own, full);
      if (calls[rank].first == sums) comm.await_all_reduced(stream, two);
      if (calls[rank].first == gather) comm.gather(std::array<std::uint64_t, 2>());
    });
  }
}

TEST_CASE("the next sums tell a rank that has called collectives which no tag tells apart") {
  if (ranks().size == 1) return;
  using Calls = std::vector<std::pair<int, std::int64_t>>;  // layer, elements per rank
  constexpr int other = 2 + (1 << 13);  // MPI's tag of this layer is that of layer 2
  const int last = ranks().size - 1;
  std::vector<std::pair<Calls, Calls>> cases{
      {{{2, 8}}, {{2, 8}}},  // calls of the other ranks, of the last
      {{{2, 8}}, {{other, 8}}},
      {{{2, 8}, {other, 8}}, {{other, 8}, {2, 8}}},
      {{{2, 8}, {2, 8}}, {{other, 8}, {other, 8}}}};
  // NCCL's messages carry no size. On a real GPU NCCL may wait for ever, so only simulated GPUs run
  // this case.
  if (ranks().choice.comm == Comm::nccl && std::getenv("SIMULATED_GPUS"))
    cases.push_back({{{2, 8}, {2, 4}}, {{2, 4}, {2, 8}}});
  for (const auto& [of_all, of_last] : cases) {
    Talk talk;
    for (const auto& [layer, own] : ranks().rank == last ? of_last : of_all) {
      Vector vector(Dtype::fp32, own, integer);
      View full = vector.full();
      full.layer = layer;
      talk.comm.all_gather(talk.stream, vector.mine(), full);
      talk.stream.synchronise();
    }
    Sums sums(device());
    const auto ask = [&] { talk.comm.await_all_reduced(talk.stream, sums); };
    const auto said = fmt::format("rank {} has called other collectives than rank 0", last);
    if (of_all == of_last) CHECK_NOTHROW(ask());
    if (of_all != of_last) check_refused(ExitCode::communication, {said}, ask);
  }
}

TEST_CASE("a message of more elements than MPI counts is refused, and told with its number") {
  if (ranks().choice.comm != Comm::mpi || ranks().size == 1) return;
  const std::int64_t part = std::int64_t{1} << 31;
  const Layout layout({part * ranks().size}, ranks().rank, ranks().size);
  check_refused(ExitCode::usage, {"2 147 483 647 elements", "2 147 483 648: use narrower"},
                [&] { ranks().communicator({}, layout); });
}

TEST_CASE("a link's time: for each other rank the latency and its part of the vector") {
  CHECK((Link{10, 50}.time(1'000'000, 4) == std::chrono::microseconds(3 * (50 + 200))));
  CHECK((Link{0, 50}.time(1'000'000, 4) == std::chrono::microseconds(150)));
  CHECK((Link{8, 0}.time(3'000'000, 3) == std::chrono::milliseconds(2)));
  CHECK((Link{8, 50}.time(3'000'000, 1) == std::chrono::milliseconds(0)));
  CHECK(Link().time(1'000'000, 4) == std::chrono::nanoseconds(0));
}

TEST_CASE("on a modelled link a collective takes its time, from when the last rank is there") {
  using namespace std::chrono_literals;
  // 20 ms for each other rank, half of it latency: 8000 fp32 to each at 25.6 Mbit/s.
  const Layout layout({8000 * ranks().size}, ranks().rank, ranks().size);
  const std::unique_ptr<Communicator> owned =
      ranks().communicator({.link = 25.6e-3, .latency = 10'000}, layout);
  Communicator& comm = *owned;
  Stream stream("test", device(), Stream::Mode::asynchronous);
  setenv("SIMULATED_CUDA_DELAY_US", "30000", 1);  // only a simulated GPU reads it
  Stream late_stream("late", device());
  unsetenv("SIMULATED_CUDA_DELAY_US");
  const auto late = std::getenv("SIMULATED_GPUS") ? 30ms : 0ms;
  Replicated gradients(device(), layout, State::gradients, Dtype::fp32);
  const View full = gradients.layer(0), own = gradients.shard(0);
  // The time from the last rank's call, with its data ready, until the first rank has the result.
  // All ranks read the same clock.
  const auto time_of = [&](const std::function<void()>& collective) {
    const auto now = [] {
      return std::uint64_t(std::chrono::steady_clock::now().time_since_epoch() / 1ns);
    };
    if (ranks().rank == 1) std::this_thread::sleep_for(30ms);
    std::uint64_t ready = now();
    if (ranks().rank == 1) {  // rank 1's data are late, too
      ready += late / 1ns;
      late_stream.kernels().divide(full, 1);
      stream.wait(late_stream.record());
    }
    collective();
    stream.synchronise();
    const auto all = comm.gather(std::array{ready, now()});
    std::uint64_t last_ready = 0, first_end = now();
    for (std::size_t r = 0; r < all.size(); r += 2) {
      last_ready = std::max(last_ready, all[r]);
      first_end = std::min(first_end, all[r + 1]);
    }
    return std::chrono::nanoseconds(first_end - last_ready);
  };
  const auto check = [&](std::chrono::nanoseconds each, const std::function<void()>& collective) {
    const auto least = (ranks().size - 1) * each, most = least + least / 2 + 5ms;
    auto took = time_of(collective);
    CHECK(took >= least);
    // On a busy machine some tries are late, but hardly all.
    for (int more = 20; took >= most && more > 0; --more) took = time_of(collective);
    CHECK(took < most);
  };
  check(20ms, [&] { comm.all_gather(stream, own, full); });
  check(20ms, [&] { comm.reduce_scatter_mean(stream, full, own); });
  check(40ms, [&] { comm.all_reduce_mean(stream, full); });
  Sums sums(device());
  check(10ms, [&] { comm.await_all_reduced(stream, sums); });
}
}  // namespace zero::test
