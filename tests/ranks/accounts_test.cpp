// SPDX-License-Identifier: MIT
// Bytes stored, elements sent and bytes copied, as the ledger, the communicator and the bus count
// them, are exactly the numbers of the chapter's formulas. A step allocates nothing. The card names
// each tensor's holder. A difference between ranks' copies is found.
#include <map>

#include "report/report.hpp"
#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"
namespace zero::test {
namespace {
/// Calls check(options, number of a sample that is not finite, or -1) for each case.
void for_all_cases(auto check) {
  for (const Dtype dtype : dtypes) {
    if (needs_master(dtype) && !chapter.mixed_precision) continue;
    for (const int prefetch : {0, 1, 2}) {
      if (prefetch != 1 && !chapter.prefetches()) continue;
      Options o = mlp_options(7, 1, dtype);
      o.steps = 2, o.batch = 3, o.loss_scale = 8, o.prefetch = prefetch, o.piece = 16;
      for (const int layers : {1, 2, 5}) {
        for (const int accumulate : {1, 2}) {
          o.layers = layers, o.accumulate = accumulate;
          // In 16 bit one case is enough: layers and micro-batches count as in fp32.
          if (dtype == Dtype::fp32 || layers + accumulate == 7) check(o, -1);
        }
      }
      check(o, 4);  // the first step is skipped: it has no update phase
      check(o, 2 * o.accumulate * ranks().size * o.batch - 1);  // the last step is skipped
      if (chapter.uses(Place::disk)) {
        o.state = Place::host;
        check(o, -1);
        o.state = Place::disk;
      }
      o.layers = 1, o.accumulate = 1, o.task = Task::toy;
      check(o, -1);
      o.task = Task::text, o.width = 16, o.data = DEFAULT_CORPUS;
      check(o, -1);
      for (const bool recompute : {false, true}) {
        o = llama_options(o), o.recompute = recompute;
        check(o, -1);
      }
    }
  }
}

/// Sets the peaks, the bytes counted on each bus, and the step back, before a run.
void restart_counters() {
  for (const Place place : every<Place>) {
    device().at(place).restart_peaks();
    for (auto& bytes : device().at(place).bus.bytes.all) bytes = 0;
  }
  here.step = 0;
}

/// Checks one number. If it is wrong, `./tutorial exercise` shows `counted` and `predicted`.
void check_count(const std::string& what, std::int64_t counted, std::int64_t predicted) {
  INFO(what);
  CHECK(counted == predicted);
}

void check_bytes(const Prediction& plan, const Device& on) {
  for (const Kind kind : every<Kind>) {
    const KindBytes& booked = on.ledger().of(kind);
    const Prediction::Bytes& planned = plan.bytes[on.place][kind];
    const std::string where = fmt::format(" on the {}", name_of(on.place));
    const std::string of =
        fmt::format("bytes of {}{} ", name_of(kind), on.place == Place::device ? "" : where);
    check_count(of + "held", booked.resident, planned.resident);
    check_count(of + "reserved", booked.reserved, planned.peak);
    check_count(of + "at the peak", booked.peak, planned.peak);
    check_count(of + "after the run", booked.now, planned.resident);  // borrowed memory is back
  }
}

void check_traffic(const Prediction& plan, Communicator& comm, Prediction::Steps steps) {
  const Sent& sent = comm.sent();
  const Prediction::Traffic planned = plan.traffic(steps);
  for (const Phase phase : {Phase::setup, Phase::forward, Phase::backward, Phase::update}) {
    std::int64_t sent_in = 0;
    for (const auto& phases : sent.elements) sent_in += phases[phase];
    check_count(fmt::format("elements sent in {}", name_of(phase)), sent_in, planned.sent[phase]);
  }
  const std::uint64_t mine = sent.padding;
  std::int64_t padding = 0;
  for (const std::uint64_t of_rank : comm.gather({&mine, 1})) padding += of_rank;
  check_count("elements of padding sent", padding, planned.padding);
  check_count("scalars sent", sent.scalars, planned.scalars);
}
}  // namespace

TEST_CASE("bytes and traffic equal the chapter's formulas") {
  for_all_cases([](const Options& o, std::int64_t bad_sample) {
    INFO(fmt::format("{} {} layers {} accumulate {} prefetch {}", name_of(o.task), name_of(o.dtype),
                     o.layers, o.accumulate, o.prefetch));
    restart_counters();
    Part part(o, poison(o, bad_sample));
    Prediction::Steps steps{o.steps};
    for (int step = 0; step < o.steps; ++step) {
      steps.last_skipped = part.step(step).skipped;
      steps.skipped += steps.last_skipped;
    }
    part.trainer->synchronise();
    CHECK((steps.skipped > 0) == (bad_sample >= 0));
    const Card& card = with_state(chapter, o.state);
    const Prediction plan = predict(card, o, device().type, part.layout);
    for (const Place place : every<Place>) check_bytes(plan, device().at(place));
    for (const Place place : bus_places) {
      for (const Direction way : every<Direction>) {
        check_count(fmt::format("bytes copied {}", copy_names[place][way]),
                    device().at(place).bus.bytes[way], plan.traffic(steps).copied[place][way]);
      }
    }
    if (part.comm.counts()) check_traffic(plan, part.comm, steps);
  });
}

TEST_CASE("a step allocates nothing, and the host waits for the device once") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    Options options = mlp_options(64, 4, dtype);
    options.accumulate = 2, options.loss_scale = 8;
    Part part(options);
    part.step(0);  // libraries allocate in the first step
    const auto taken = [] {
      return device().allocations + device().host().allocations +
             device().at(Place::disk).allocations;
    };
    const std::int64_t allocations = taken(), waits = device().waits;
    for (int step = 1; step <= 5; ++step) part.step(step);
    CHECK(taken() == allocations);
    // No thread waits for a CPU. For a GPU the host waits once a step; in 07 its cores, too; in 08
    // they wait for the gradients of each of 4 layers. Messages by way of the host add waits.
    const bool staged = ranks().choice.comm == Comm::mpi && ranks().size > 1;
    const int others = chapter.stages() ? 1 : chapter.offloads() ? 4 * options.accumulate : 0;
    if (!staged) CHECK(device().waits - waits <= 5 * (1 + others));
    if (!on_gpus()) CHECK(device().waits == waits);
  }
}

TEST_CASE("the card says of each tensor who holds it") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    const Part part(mlp_options(7, 2, dtype));
    const auto& [parameters, gradients, optimizer] = chapter.held;
    std::map<State, Placement> said{{State::parameters, parameters},
                                    {State::gradients, gradients},
                                    {State::momentum, optimizer},
                                    {State::variance, optimizer}};
    if (needs_master(dtype) || chapter.stages()) said[State::master] = optimizer;
    if (chapter.stages()) said[State::staged] = Placement::sharded_on_host;
    for (const Place place : every<Place>) {
      for (const StateTensor* tensor : device().at(place).state_tensors()) {
        INFO(std::string(name_of(tensor->state)));
        REQUIRE(said.contains(tensor->state));  // and no state has two tensors
        const std::string card = name_of(said.extract(tensor->state).mapped());
        const std::string held =
            name_of(dynamic_cast<const Replicated*>(tensor) ? Placement::replicated
                    : place == Place::disk                  ? Placement::sharded_on_disk
                    : place == Place::host                  ? Placement::sharded_on_host
                                                            : Placement::sharded);
        CHECK(held == card);
      }
    }
    CHECK(said.empty());
  }
}

TEST_CASE("what ranks hold alike is compared, tensor by tensor") {
  const int n = ranks().size;
  for (const Dtype dtype : dtypes_of_chapter()) {
    Part part(mlp_options(7, 2, dtype));
    part.step(0);
    part.trainer->synchronise();
    const auto compare = [&] {
      const auto weights = [&](int l) { return part.trainer->adam_state(l).weights; };
      return digests_over_ranks(layer_digests(device(), part.layout, weights), part.comm);
    };
    // compare() throws on all ranks or on none, so the other cases can go on.
    std::vector<std::uint64_t> digests;
    CHECK_NOTHROW(digests = compare());
    for (StateTensor* tensor : device().state_tensors()) {
      auto* const whole = dynamic_cast<Replicated*>(tensor);
      if (n == 1 || !whole || tensor->state == State::gradients) continue;
      const auto flip_a_bit = [at = whole->layer(1).data, n] {
        std::byte byte;
        if (ranks().rank != n - 1) return;
        device().copy(&byte, at, 1);
        byte ^= std::byte{1};
        device().copy(at, &byte, 1);
      };
      flip_a_bit();
      const bool parameters = tensor->state == State::parameters;
      check_refused(ExitCode::numerics,
                    {parameters ? "the parameters of layer 1" : "the optimizer state of layer 1",
                     "between rank 0 (", fmt::format("and rank {} (", n - 1)},
                    compare);
      flip_a_bit();
      CHECK_NOTHROW(CHECK(compare() == digests));
    }
  }
}
}  // namespace zero::test
