// SPDX-License-Identifier: MIT
// Measures how much of its communication chapter 06, 07 or 08, with which this program is linked,
// hides behind its computation, on one GPU and without a second process: the peer is a model. What
// communication costs the GPU is real: copies to the host and back, and the mean. Between the two
// copies the exchange waits as long as a link would take. The link's bandwidth is such that all
// communication takes `share` of the time of computation. Times are the GPU's own, from events
// around every task of compute and every collective. An argument (--small) is for a simulated GPU,
// whose times say nothing: there the program only counts hidden gathers and copies, at prefetch 1
// in the best of up to 100 steps, because on busy cores something is late in most steps.
//
// At prefetch 0 two gathers may be hidden: the first, while the sums are cleared, and the last
// layer's second, during the loss. At prefetch 1 the copy of the first layer's gradients to the
// host, one of 16, is exposed, because no layer's backward follows it; a second may be.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>

#include "compute/cuda/runtime.hpp"
#include "tests/chapter_under_test.hpp"
#include "trace/overlap.hpp"

namespace zero::test {
namespace {
constexpr int layers = 16, gathers_a_step = 2 * layers;
constexpr int warm_up = 2, measured = 5;  // steps
const bool offloads = chapter.offloads();

struct Setting {
  int width = 2048, batch = 65536;
  bool judges_times = true;
  int most_exposed = 2;  // gathers per step that may be exposed, at prefetch 1
  int most_measured = measured;  // steps, at prefetch 1
};
constexpr Setting small{32, 32, false, 8, 100};  // 8 and 100, because a core may be late
constexpr int least_to_host = layers - 2;  // hidden copies of gradients per step, at prefetch 1
constexpr double share = 0.4;  // communication's time over computation's, at prefetch 0

/// Returns the priority of a stream's work on the GPU. The smallest number goes first.
int priority_of(Kernels& on) {
  int priority = 0;
  cuda::check_cuda(cudaStreamGetPriority(static_cast<cudaStream_t>(on.queue()), &priority));
  return priority;
}

/// Rank 0's link to rank 1, which is a model: it sends back what it was sent, after the time that
/// the link takes. An exchange sets `priority` to that of the sending stream.
class ModelledLink : public Transport {
 public:
  ModelledLink(Device& gpu, int& priority, double bytes_per_second, std::int64_t largest_bytes)
      : priority_(priority),
        bytes_per_second_(bytes_per_second),
        staged_(gpu.host(), largest_bytes) {}

  void exchange(Kernels& on, Collective, std::span<const Peer> peers) override {
    const auto& [rank, out, in] = peers.front();
    if (!in.on_gpu()) {
      std::memcpy(in.data, out.data, in.bytes());
      return;
    }
    priority_ = priority_of(on);
    on.copy_bytes(staged_.data(), out.data, out.bytes());
    wait_for(on.record());
    const double ns = 1e9 * static_cast<double>(out.bytes()) / bytes_per_second_;
    sleep_precisely_until(Clock::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
    on.copy_bytes(in.data, staged_.data(), in.bytes());
  }

  std::string library() const override { return "a modelled link"; }

 private:
  int& priority_;
  double bytes_per_second_;
  Buffer staged_;
};

/// Loads the samples of step 0, and leaves them in place for all steps: loading runs beside a
/// step's first gather at every prefetch, and would be taken for computation that hides it.
class SameSamples : public Data {
 public:
  SameSamples(const Options& options, Device& gpu)
      : Data(options, 0, 2), samples_(make_data(options, gpu, 0, 2)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    priority = priority_of(on);
    if (first == 0) samples_->load(on, first, inputs, targets);
  }

  mutable int priority = 0;  // of the compute stream

 private:
  std::unique_ptr<Data> samples_;
};

/// Messages or copies: their ms in all measured steps. exposed_ms: those while nothing is computed.
struct Passed {
  double ms = 0, exposed_ms = 0;
  int hidden = 0, most_hidden = 0;  // at least half hidden: in the last, best step
};
/// Sums over all measured steps. bytes: what rank 0 sends in so many steps.
struct Outcome {
  double compute_ms = 0, bytes = 0;
  Passed messages, gathers, to_host;  // gathers are messages, too; to_host: gradients copied there
  bool messages_first = false;  // whether messages have the higher priority on the GPU

  void add(const std::vector<Slice>& step, int compute_track) {
    const auto ms = [](std::chrono::nanoseconds time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    messages.hidden = gathers.hidden = to_host.hidden = 0;
    std::vector<Slice> compute;
    std::ranges::copy_if(step, std::back_inserter(compute), [&](const Slice& slice) {
      return slice.track == compute_track && slice.work.type == Work::Type::compute;
    });
    for (const Slice& slice : compute) compute_ms += ms(slice.end.time() - slice.begin.time());
    for (const Slice& slice : step) {
      const bool down =
          slice.work.type == Work::Type::transfer && slice.work.place() == Place::host;
      if (slice.work.type != Work::Type::message && !down) continue;
      std::vector<Slice> both = compute;
      both.push_back(slice);
      const OverlapTimes of = overlap_times(both, slice.step);
      const OverlapTime time =
          down ? of.transfers[Place::device][Direction::to_host] : of.messages[slice.phase];
      const auto count = [&](Passed& passed) {
        passed.ms += ms(time.exposed + time.hidden);
        passed.exposed_ms += ms(time.exposed);
        passed.hidden += time.hidden >= time.exposed;
        passed.most_hidden = std::max(passed.most_hidden, passed.hidden);
      };
      count(down ? to_host : messages);
      if (slice.work.what == std::string_view("all_gather")) count(gathers);
    }
  }

  bool reaches_bars(const Setting& setting) const {
    return gathers.most_hidden >= gathers_a_step - setting.most_exposed &&
           (!offloads || to_host.most_hidden >= least_to_host);
  }
};

Outcome run(const Setting& setting, int prefetch, double bytes_per_second) {
  Options options{.task = Task::mlp, .width = setting.width, .layers = layers};
  options.batch = setting.batch, options.dtype = Dtype::bf16;
  options.lr = 1e-5, options.prefetch = prefetch;
  options.state = Place::host;  // in 08, where a disk would set the pace
  const auto gpu = make_gpu();
  const Layout layout = layout_of(options, 0, 2);
  const SameSamples data(options, *gpu);
  Recorder recorder(*gpu, true, false, false);
  const std::int64_t half = layout.largest_layer() / 2 * bytes_of(options.dtype);
  int priority = 0;  // of messages
  Communicator comm(0, 2, std::make_unique<ModelledLink>(*gpu, priority, bytes_per_second, half),
                    *gpu, options.dtype, layout.largest_layer());
  const auto trainer = make_trainer(options, *gpu, layout, comm);
  const std::vector<std::string> tracks = recorder.tracks();
  const auto computing = static_cast<int>(std::ranges::find(tracks, "compute") - tracks.begin());
  Outcome outcome;
  const int steps = warm_up + (prefetch == 0 ? measured : setting.most_measured);
  for (int step = 0; step < steps; ++step) {
    trainer->step(data, step);
    trainer->synchronise();
    const std::vector<Slice> slices = recorder.take();
    if (step >= warm_up) outcome.add(slices, computing);
    if (!setting.judges_times && outcome.reaches_bars(setting)) break;
  }
  for (const auto& phases : comm.sent().elements) {
    outcome.bytes += std::accumulate(phases.begin(), phases.end(), 0.0);
  }
  outcome.bytes *= bytes_of(options.dtype) * measured / (warm_up + measured);
  outcome.messages_first = priority < data.priority;
  if (!setting.judges_times) return outcome;
  fmt::print("prefetch {}: compute {:.2f} ms per step, communication {:.2f}\n", prefetch,
             outcome.compute_ms / measured, outcome.messages.ms / measured);
  return outcome;
}

constexpr double no_wait = std::numeric_limits<double>::infinity();

/// Returns the bytes per second with which communication takes `share` of the computation's time.
double calibrated(const Setting& setting) {
  const Outcome copies_only = run(setting, 0, no_wait);
  const double ms = share * copies_only.compute_ms - copies_only.messages.ms;
  return ms > 0 ? copies_only.bytes / ms * 1e3 : no_wait;
}

bool passed_all = true;
/// Prints the figure beside its bar, and sets passed_all to false unless the figure is good.
void check(bool good, const char* what, double figure, double bar) {
  passed_all &= good;
  fmt::print("{}: {}: {:.2f}, bar {:.2f}\n", good ? "yes" : "NO", what, figure, bar);
}
void at_least(double bar, const char* what, double figure) {
  check(figure >= bar, what, figure, bar);
}
void at_most(double bar, const char* what, double figure) {
  check(figure <= bar, what, figure, bar);
}
}  // namespace
}  // namespace zero::test

int main(int argc, char**) {
  using namespace zero::test;
  const Setting setting = argc > 1 ? small : Setting();
  if (const zero::Gpus gpus = zero::visible_gpus(); gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  fmt::print(
      "{}: {} layers of width {}, batch {}, bf16, and a modelled peer: copies to the host and "
      "back, and the link between. By the GPU's events, means of {} steps:\n",
      chapter.name, layers, setting.width, setting.batch, measured);
  const double bytes_per_second = setting.judges_times ? calibrated(setting) : no_wait;
  fmt::print("the link from now on: {:.4g} MB/s\n", bytes_per_second / 1e6);
  const Outcome without = run(setting, 0, bytes_per_second);
  const Outcome with = run(setting, 1, bytes_per_second);
  const auto exposed = [](const Passed& of) { return of.exposed_ms / of.ms; };
  at_least(1, "messages have the higher priority", with.messages_first);
  at_most(2, "prefetch 0: gathers that are hidden, most", without.gathers.most_hidden);
  at_least(gathers_a_step - setting.most_exposed, "prefetch 1: gathers that are hidden, least",
           with.gathers.most_hidden);
  if (offloads) {
    at_least(least_to_host, "prefetch 1: gradients that go to the host beside compute, least",
             with.to_host.most_hidden);
  }
  if (setting.judges_times) {
    at_least(2, "compute over communication, least", without.compute_ms / without.messages.ms);
    at_least(0.95, "prefetch 0: share exposed, least", exposed(without.messages));
    at_most(0.10, "prefetch 1: share exposed, most", exposed(with.messages));
    if (offloads) at_most(0.15, "prefetch 1: of the way to the host, most", exposed(with.to_host));
  }
  return passed_all ? 0 : 1;
}
