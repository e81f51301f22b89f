// SPDX-License-Identifier: MIT
// Bytes held, elements sent and bytes copied: what the ledgers, the communicator and the bus
// counted equals the chapter's formulas, in integers.
#include <numeric>

#include "report/report.hpp"
#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"
namespace zero::test {
namespace {
struct Case {
  Options options;
  std::int64_t bad_sample = -1;  // none
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    if (dtype != Dtype::fp32 && !chapter.mixed_precision) continue;
    for (const int prefetch : {0, 1, 2}) {
      if (prefetch != 1 && !chapter.prefetch()) continue;
      Options options = mlp_options(7, 1, dtype);
      options.prefetch = prefetch;
      options.loss_scale = 8;
      options.batch = 3;
      options.steps = 2;
      for (const int layers : {1, 2, 5}) {
        options.layers = layers;
        for (const int accumulate : {1, 2}) {
          options.accumulate = accumulate;
          // How many layers there are, and how often, is one question for all dtypes.
          if (dtype == Dtype::fp32 || layers + accumulate == 7) all.push_back({options});
        }
      }
      all.push_back({options, 4});  // its first step is skipped: no update phase
      options.task = Task::toy;
      all.push_back({options});
      options.task = Task::text;
      options.width = 16;
      options.data = DEFAULT_CORPUS;
      all.push_back({options});
    }
  }
  return all;
}

/// Every figure under the same two names, which ./tutorial exercise shows.
void check_count(const std::string& what, std::int64_t counted, std::int64_t predicted) {
  INFO(what);
  CHECK(counted == predicted);
}

void check_bytes(const Prediction& plan) {
  for (const Kind kind : every<Kind>) {
    for (const Place place : every<Place>) {
      const KindBytes& booked = ledger(place).of(kind);
      const Prediction::Bytes& planned = plan.bytes[place][kind];
      const std::string of =
          fmt::format("bytes of {}{} ", name_of(kind), place == Place::host ? " on the host" : "");
      check_count(of + "held", booked.resident, planned.resident);
      check_count(of + "reserved", booked.reserved, planned.peak);
      check_count(of + "at the peak", booked.peak, planned.peak);
      check_count(of + "after the run", booked.now, planned.resident);  // what is borrowed is back
    }
  }
}

void check_copies(const Prediction& plan, Prediction::Steps steps) {
  for (const Direction direction : every<Direction>) {
    const std::string what = fmt::format("bytes copied {}", name_of(direction));
    check_count(what, bus().of(direction), plan.passed(steps).copied[direction]);
    INFO(what);
    const bool any = chapter.offloads() && steps.all > steps.skipped;
    CHECK((bus().of(direction) > 0) == any);
  }
}

/// Seen from before the first tensor until the last step.
void check_phases(const Prediction& plan, const Recorder& recorder, int steps) {
  const std::vector<MemoryPhase> rows = memory_phases(recorder.booked(), steps);
  for (const MemoryPhase& row : rows) {
    for (const Kind kind : every<Kind>) {
      check_count(fmt::format("bytes of {} after {} of step {}", name_of(kind), name_of(row.phase),
                              row.step),
                  row.bytes[kind], plan.after[row.phase][kind]);
    }
  }
  // Nothing is borrowed at the start: where parameters are a shard nobody ever has them whole.
  CHECK(rows[0].peak == rows[0].in_use);
  std::int64_t peak = 0;
  for (const MemoryPhase& row : rows) peak = std::max(peak, row.peak);
  CHECK(peak == ledger().peak_of_total());
}

void check_traffic(const Prediction& plan, Communicator& comm, Prediction::Steps steps) {
  const Sent& sent = comm.sent();
  const Prediction::Passed planned = plan.passed(steps);
  const auto sent_in = [&](Phase phase) {
    std::int64_t sum = 0;
    for (const auto& phases : sent.elements) sum += phases[phase];
    return sum;
  };
  for (const Phase phase : step_phases) {
    check_count(fmt::format("elements sent in {}", name_of(phase)), sent_in(phase),
                planned.sent[phase]);
  }
  check_count("elements sent in setup", sent_in(Phase::setup), 0);
  const std::uint64_t mine = sent.padding;
  const auto all = comm.gather({&mine, 1});
  check_count("elements of padding sent", std::accumulate(all.begin(), all.end(), std::int64_t{0}),
              planned.padding);
  check_count("scalars sent", sent.scalars, planned.scalars);
}
}  // namespace

TEST_CASE("bytes and traffic equal the chapter's formulas") {
  for (const Case& c : cases()) {
    const Options& o = c.options;
    INFO(fmt::format("{} {} layers {} accumulate {} prefetch {}", name_of(o.task), name_of(o.dtype),
                     o.layers, o.accumulate, o.prefetch));
    for (const Place place : {Place::device, Place::host}) ledger(place).restart_peaks();
    for (auto& bytes : bus().bytes) bytes = 0;
    current_step = 0;
    const Recorder recorder(false, 2);
    Part part(o, poisoned_data(o, c.bad_sample));
    Prediction::Steps steps{o.steps, 0};
    for (int step = 0; step < o.steps; ++step) steps.skipped += part.step(step).skipped;
    part.trainer->synchronise();
    CHECK((steps.skipped > 0) == (c.bad_sample == 4));
    const Prediction plan = predict(chapter, o, device(), part.layout);
    check_bytes(plan);
    check_phases(plan, recorder, o.steps);
    check_copies(plan, steps);
    if (part.comm.counts()) check_traffic(plan, part.comm, steps);
  }
}

TEST_CASE("a step allocates nothing, and the host waits for the device once") {
  for (const Dtype dtype : dtypes_of_chapter()) {
    Options options = mlp_options(64, 4, dtype);
    options.accumulate = 2;
    options.loss_scale = 8;
    Part part(options, ordinary_data(options));
    part.step(0);  // libraries get ready in the first
    const std::int64_t allocations = allocations_so_far, waits = waits_so_far();
    for (int step = 1; step <= 5; ++step) part.step(step);
    CHECK(allocations_so_far == allocations);
    // Where the device has finished by itself, nobody waits. A GPU's bytes that pass through the
    // host's memory are waited for wave by wave.
    const bool staged = ranks().choice.comm == Comm::mpi && ranks().size > 1;
    if (!staged) CHECK(waits_so_far() - waits <= 5);
    if (device() == Device::cpu) CHECK(waits_so_far() == waits);
  }
}

TEST_CASE("what ranks hold alike is compared, tensor by tensor") {
  const int n = ranks().size;
  const double whole_parameters = chapter.state_bytes(1, 0, 0, n);
  for (const Dtype dtype : dtypes_of_chapter()) {
    const Options options = mlp_options(7, 2, dtype);
    Part part(options, ordinary_data(options));
    part.step(0);
    part.trainer->synchronise();
    const auto compare = [&] {
      const auto weights = [&](int l) { return part.trainer->state(l).weights; };
      return digests_over_ranks(layer_digests(part.layout, weights), part.comm);
    };
    // An exception is all ranks' at once here: the other cases can go on.
    std::vector<std::uint64_t> digests;
    CHECK_NOTHROW(digests = compare());
    bool parameters_seen = false;
    for (const auto& [kind, view] : Tensor::held) {
      const bool parameters = kind == Kind::parameters;
      const bool whole = n > 1 && view.size == part.layout.full_size();
      if (!whole || !(parameters || kind == Kind::optimizer)) continue;
      parameters_seen |= parameters;
      const auto flip_a_bit = [&, at = part.layout.layer(view, 1).data] {
        std::byte byte;
        if (ranks().rank != n - 1) return;
        memory_of(view.device).copy(&byte, at, 1);
        byte ^= std::byte{1};
        memory_of(view.device).copy(at, &byte, 1);
      };
      flip_a_bit();
      check_refused(ExitCode::numerics,
                    {parameters ? "the parameters of layer 1" : "the optimizer state of layer 1",
                     "between rank 0 (", fmt::format("and rank {} (", n - 1)},
                    compare);
      flip_a_bit();
      CHECK_NOTHROW(CHECK(compare() == digests));
    }
    CHECK(parameters_seen == (n > 1 && whole_parameters == 1));
  }
}
}  // namespace zero::test
