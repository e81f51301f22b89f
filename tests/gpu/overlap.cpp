// SPDX-License-Identifier: MIT
// How much of chapter 06's communication hides behind its computation, on one GPU and without a
// second process: the peer is a model. What it costs the GPU is real, copies to the host and back
// and the mean; the exchange between the two copies is a wait, as long as a link of a chosen
// bandwidth would take. That bandwidth is chosen so that communication takes --share of the time
// that computation takes. All times are the GPU's own: events around every task of compute and
// around every collective.
//
// Bars: of the communication, at most 0.12 is exposed at prefetch 1, and at least 0.95 at prefetch
// 0. There, one gather cannot help being hidden: the last layer's second one, by the loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "compute/cuda/check.hpp"
#include "trainer.hpp"

namespace zero {

namespace {

constexpr int layers = 16;
constexpr int gathers_a_step = 2 * layers;
constexpr int warm_up = 2;  // steps

enum class Judge { nothing, counts, all };

struct Setting {
  int width = 2048;
  int batch = 65536;
  int steps = 5;
  double share = 0.4;  // communication over computation, without overlap
  Judge judge = Judge::all;
};

// ---- What the GPU did when ----

/// Milliseconds since a step's begin.
struct Interval {
  double length() const { return end - begin; }
  double begin, end;
};
using Intervals = std::vector<Interval>;

double length(const Intervals& intervals) {
  return std::accumulate(intervals.begin(), intervals.end(), 0.0, [](double sum, Interval i) {
    return sum + i.length();
  });
}

/// The time that lies in any of them, in order and apart.
Intervals merged(Intervals intervals) {
  std::sort(
      intervals.begin(), intervals.end(), [](Interval a, Interval b) { return a.begin < b.begin; });
  Intervals apart;
  for (const Interval& next : intervals) {
    if (apart.empty() || apart.back().end < next.begin) {
      apart.push_back(next);
    } else {
      apart.back().end = std::max(apart.back().end, next.end);
    }
  }
  return apart;
}

/// The part of `one` that lies in `apart`.
double covered(Interval one, const Intervals& apart) {
  double sum = 0;
  for (const Interval& i : apart) {
    sum += std::max(0.0, std::min(one.end, i.end) - std::max(one.begin, i.begin));
  }
  return sum;
}

class TimingEvent {
 public:
  explicit TimingEvent(cudaStream_t stream) {
    cuda::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDefault));
    cuda::check_cuda(cudaEventRecord(event_, stream));
  }
  ~TimingEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  TimingEvent(TimingEvent&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  TimingEvent& operator=(TimingEvent&&) = delete;

  double milliseconds_since(const TimingEvent& earlier) const {
    float milliseconds = 0;
    cuda::check_cuda(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

enum class Work { compute, gather, reduce_scatter };
constexpr int work_count = 3;
/// Of a step, one list for each Work.
using Trace = std::array<Intervals, work_count>;

/// Records a timing event at both ends of everything. One Work belongs to one stream, so no two
/// threads meet in a list; the host reads them when both streams are idle.
class Recorder {
 public:
  void mark(Work work, Kernels& on, bool begins) {
    auto& [begin, end] = marks_[static_cast<int>(work)];
    (begins ? begin : end).emplace_back(static_cast<cudaStream_t>(on.queue()));
  }

  void restart() {
    for (Marks& marks : marks_) marks = {};
    origin_.emplace(nullptr);
  }

  Trace trace() const {
    Trace trace;
    for (int work = 0; work < work_count; ++work) {
      const auto& [begin, end] = marks_[work];
      for (std::size_t i = 0; i < begin.size(); ++i) {
        trace[work].push_back(
            {begin[i].milliseconds_since(*origin_), end[i].milliseconds_since(*origin_)});
      }
    }
    return trace;
  }

 private:
  struct Marks {
    std::vector<TimingEvent> begin, end;
  };
  std::array<Marks, work_count> marks_;
  std::optional<TimingEvent> origin_;
};

/// Has the recorder see the tasks of the compute stream that is made within the scope; the modelled
/// peer marks its own, as it knows which they are.
class Observation {
 public:
  explicit Observation(Recorder& recorder) {
    Stream::observe([&](const std::string& stream, Phase, Kernels& on, bool begins) {
      if (stream == "compute") recorder.mark(Work::compute, on, begins);
    });
  }
  ~Observation() { Stream::observe(nullptr); }
};

// ---- The other rank ----

/// Sleeping alone would be late by as much as the scheduler likes.
void wait_precisely(std::chrono::nanoseconds time) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + time;
  std::this_thread::sleep_until(end - std::chrono::microseconds(200));
  while (Clock::now() < end) {
  }
}

/// Rank 0 of two. Rank 1 answers with what it was sent, after the time that the link takes.
class ModelledPeer : public Communicator {
 public:
  ModelledPeer(Recorder& recorder, double bytes_per_second)
      : Communicator(0, 2, "a modelled peer", process_peak_bytes()),
        recorder_(recorder),
        bytes_per_second_(bytes_per_second) {}

  void reserve(Dtype dtype, std::int64_t largest) override {
    received_.emplace(Kind::communication, dtype, largest / 2);
    staging_.emplace(Device::cuda, largest / 2 * bytes_of(dtype));
  }

  void reduce_scatter_mean(Stream& stream, View full, View shard, Write write) override {
    const Booking loan = received_->book();
    const View received = loan.view().part(0, shard.size);
    stream.run([=, this, &on = stream.kernels()] {
      recorder_.mark(Work::reduce_scatter, on, true);
      exchange(on, full.part(shard.size, shard.size), received, Collective::reduce_scatter);
      on.ordered_mean(full.part(0, shard.size), 0, received, shard, add);
      recorder_.mark(Work::reduce_scatter, on, false);
    });
  }

  void all_gather(Stream& stream, View full) override {
    const std::int64_t own = full.size / 2;
    stream.run([=, this, &on = stream.kernels()] {
      recorder_.mark(Work::gather, on, true);
      exchange(on, full.part(0, own), full.part(own, own), Collective::all_gather);
      recorder_.mark(Work::gather, on, false);
    });
  }

  Totals sum(Stream& stream, Sums& sums) override {
    stream.run([&, this, &on = stream.kernels()] {
      on.fetch(sums);
      sent_.scalars += 2;
    });
    stream.synchronise();
    return {2 * sums.totals.loss, 2 * sums.totals.squares};
  }

 private:
  void exchange(Kernels& on, View out, View in, Collective collective) {
    on.copy_bytes(staging_->data(), out.data, out.bytes());
    wait_for(on.record());
    const double seconds = static_cast<double>(out.bytes()) / bytes_per_second_;
    wait_precisely(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
    count(out, collective);
    on.copy_bytes(in.data, staging_->data(), in.bytes());
  }

  Recorder& recorder_;
  double bytes_per_second_;
  std::optional<Scratch> received_;
  std::optional<HostBuffer> staging_;
};

// ---- A run ----

/// The samples of step 0 in all steps, loaded there once: a step loads beside its first gather,
/// whatever the prefetch, which would be taken for overlap.
class SameSamples : public Data {
 public:
  explicit SameSamples(const Options& options)
      : Data(options, 0, 2),
        samples_(make_data(options, 0, 2)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    if (first == 0) samples_->load(on, first, inputs, targets);
  }

 private:
  std::unique_ptr<Data> samples_;
};

/// Milliseconds of a step, and the number of its gathers that ran under compute for half their time
/// or longer. What does not run under compute is exposed.
struct Times {
  double step, compute, gathers, reduce_scatters, communication, exposed, hidden;
};

Times times_of(const Trace& trace) {
  const auto of = [&](Work work) -> const Intervals& { return trace[static_cast<int>(work)]; };
  const Intervals compute = merged(of(Work::compute));
  Times times{};
  times.step = compute.back().end - compute.front().begin;
  times.compute = length(compute);
  times.gathers = length(of(Work::gather));
  times.reduce_scatters = length(of(Work::reduce_scatter));
  times.communication = times.gathers + times.reduce_scatters;
  times.exposed = times.communication;
  for (const Interval& gather : of(Work::gather)) {
    const double under = covered(gather, compute);
    times.exposed -= under;
    if (under >= gather.length() / 2) ++times.hidden;
  }
  for (const Interval& scatter : of(Work::reduce_scatter)) {
    times.exposed -= covered(scatter, compute);
  }
  return times;
}

double median(const std::vector<Times>& steps, double Times::*of) {
  std::vector<double> values;
  for (const Times& step : steps) values.push_back(step.*of);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Times medians(const std::vector<Times>& steps) {
  Times times{};
  for (const auto of : {&Times::step,
                        &Times::compute,
                        &Times::gathers,
                        &Times::reduce_scatters,
                        &Times::communication,
                        &Times::exposed,
                        &Times::hidden}) {
    times.*of = median(steps, of);
  }
  return times;
}

struct Outcome {
  double exposed_share() const { return times.exposed / times.communication; }
  Times times;  // medians
  double bytes_a_step;
};

Options options_of(const Setting& setting, int prefetch) {
  Options o;
  o.task = Task::mlp;
  o.width = setting.width;
  o.layers = layers;
  o.batch = setting.batch;
  o.dtype = Dtype::bf16;
  o.lr = 1e-5;
  o.prefetch = prefetch;
  o.device = Device::cuda;
  return o;
}

double bytes_sent(const Ranks& ranks, Dtype dtype) {
  std::int64_t elements = 0;
  for (const auto& phases : ranks.sent().elements) {
    elements += std::accumulate(phases.begin(), phases.end(), std::int64_t{0});
  }
  return static_cast<double>(elements * bytes_of(dtype));
}

Outcome run(const Setting& setting, int prefetch, double bytes_per_second) {
  const Options options = options_of(setting, prefetch);
  const SameSamples data(options);
  Recorder recorder;
  ModelledPeer comm(recorder, bytes_per_second);
  const Observation observation(recorder);
  Trainer trainer(options, comm);
  std::vector<Times> steps;
  for (int step = 0; step < warm_up + setting.steps; ++step) {
    trainer.synchronise();
    recorder.restart();
    trainer.step(data, step);
    trainer.synchronise();
    if (step >= warm_up) steps.push_back(times_of(recorder.trace()));
  }
  return {medians(steps), bytes_sent(comm, options.dtype) / (warm_up + setting.steps)};
}

/// The bandwidth with which communication, copies and all, takes its share of the computation.
double calibrated(const Setting& setting) {
  constexpr double none = std::numeric_limits<double>::infinity();  // the wait is no time
  const Outcome copies_only = run(setting, 0, none);
  const double milliseconds =
      setting.share * copies_only.times.compute - copies_only.times.communication;
  return milliseconds > 0 ? copies_only.bytes_a_step / milliseconds * 1e3 : none;
}

// ---- The table, and what it must say ----

void print_head(const Setting& setting, double bytes_per_second) {
  fmt::print("{}: {} layers of width {}, batch {}, bf16, rank 0 of 2\n",
             device_words(),
             layers,
             setting.width,
             setting.batch);
  fmt::print("The peer is modelled: real copies to the host and back, {:.4g} MB/s between.\n",
             bytes_per_second / 1e6);
  fmt::print("Milliseconds by the GPU's events, medians of {} steps.\n\n", setting.steps);
  fmt::print(
      "                                     reduce-  exposed   of all  gathers\n"
      "prefetch     step  compute  gathers scatters of these            hidden\n");
}

void print_row(int prefetch, const Outcome& outcome) {
  const Times& times = outcome.times;
  fmt::print("{:>8}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.3f}{:>9.0f}\n",
             prefetch,
             times.step,
             times.compute,
             times.gathers,
             times.reduce_scatters,
             times.exposed,
             outcome.exposed_share(),
             times.hidden);
}

/// Counts and prints what does not hold.
class Bars {
 public:
  void expect(bool holds, const std::string& what) {
    fmt::print("{}: {}\n", holds ? "yes" : "NO", what);
    if (!holds) ++missed_;
  }
  bool missed() const { return missed_ > 0; }

 private:
  int missed_ = 0;
};

bool judged(Judge judge, const Outcome& without, const Outcome& with) {
  Bars bars;
  if (judge == Judge::nothing) return true;
  const auto gathers = [](const Outcome& o) {
    return fmt::format("{:.0f} of {} gathers are hidden", o.times.hidden, gathers_a_step);
  };
  bars.expect(without.times.hidden <= 1,
              fmt::format("prefetch 0: {}, at most 1", gathers(without)));
  bars.expect(with.times.hidden >= gathers_a_step - 2,
              fmt::format("prefetch 1: {}, at least {}", gathers(with), gathers_a_step - 2));
  if (judge == Judge::counts) return !bars.missed();
  const double ratio = without.times.compute / without.times.communication;
  bars.expect(
      ratio >= 2,
      fmt::format("compute is {:.2f} times communication, at least 2 (else a larger --batch)",
                  ratio));
  bars.expect(without.exposed_share() >= 0.95,
              fmt::format("prefetch 0: {:.3f} is exposed, at least 0.95", without.exposed_share()));
  bars.expect(with.exposed_share() <= 0.12,
              fmt::format("prefetch 1: {:.3f} is exposed, at most 0.12", with.exposed_share()));
  return !bars.missed();
}

/// False when the command line is not understood.
bool read(int argc, char** argv, Setting& setting) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const bool more = i + 1 < argc;
    int* const number = name == "--width"   ? &setting.width
                        : name == "--batch" ? &setting.batch
                        : name == "--steps" ? &setting.steps
                                            : nullptr;
    if (name == "--no-judge") {
      setting.judge = Judge::nothing;
    } else if (name == "--judge-counts") {
      setting.judge = Judge::counts;
    } else if (name == "--share" && more) {
      setting.share = std::atof(argv[++i]);
    } else if (!number || !more || (*number = std::atoi(argv[++i])) < 1) {
      return false;
    }
  }
  return true;
}

}  // namespace

}  // namespace zero

int main(int argc, char** argv) {
  using namespace zero;
  Setting setting;
  if (!read(argc, argv, setting)) {
    fmt::print(
        "usage: {} [--width n] [--batch n] [--steps n] [--share x]\n"
        "       [--judge-counts | --no-judge]\n",
        argv[0]);
    return 2;
  }
  const Gpus gpus = visible_gpus();
  if (gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  try {
    use_device(Device::cuda);
    const double bytes_per_second = calibrated(setting);
    print_head(setting, bytes_per_second);
    std::vector<Outcome> outcomes;
    for (const int prefetch : {0, 1, 2}) {
      outcomes.push_back(run(setting, prefetch, bytes_per_second));
      print_row(prefetch, outcomes.back());
    }
    fmt::print("\n");
    return judged(setting.judge, outcomes[0], outcomes[1]) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
