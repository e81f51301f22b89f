// SPDX-License-Identifier: MIT
// How much of the communication of chapter 06, or of 07, with which this is linked, hides behind
// its computation, on one GPU and without a second process: the peer is a model. What it costs the
// GPU is real, copies to the host and back and the mean; the exchange between the two copies is a
// wait, as long as a link of a chosen bandwidth would take. That bandwidth is chosen so that
// communication takes a share of the time that computation takes. All times are the GPU's own:
// events around every task of compute and around every collective. With --small it is a run for a
// simulated GPU, whose times say nothing: there only what runs beside what is counted.
//
// At prefetch 0 two gathers may be hidden: the first, by the clearing of the sums, and the last
// layer's second one, by the loss. Of the time in which 07's gradients go down to the host a part
// is exposed at prefetch 1: the first layer's, one of 16.
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
  double share = 0.4;  // communication over computation, without overlap
  bool judges_times = true;
};
constexpr Setting small{32, 32, 0.25, false};

/// Of a stream's work on the GPU: the smaller goes first.
int priority_of(Kernels& on) {
  int priority = 0;
  cuda::check_cuda(cudaStreamGetPriority(static_cast<cudaStream_t>(on.queue()), &priority));
  return priority;
}

/// Between rank 0 and rank 1 of two. Rank 1 answers with what it was sent, after the time that the
/// link takes.
class ModelledLink : public Transport {
 public:
  ModelledLink(Device& gpu, int& priority, double bytes_per_second, std::int64_t largest_bytes)
      : priority_(priority),
        bytes_per_second_(bytes_per_second),
        staged_(gpu.host(), largest_bytes) {}

  void start(Kernels& on, Collective, std::span<const Part> outgoing,
             std::span<const Part> incoming) override {
    const View out = outgoing.front().elements, in = incoming.front().elements;
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
  int& priority_;  // of what sends
  double bytes_per_second_;
  Buffer staged_;
};

/// The samples of step 0 in all steps, loaded there once: a step loads beside its first gather,
/// whatever the prefetch, which would be taken for overlap.
class SameSamples : public Data {
 public:
  SameSamples(const Options& options, Device& gpu)
      : Data(options, 0, 2), samples_(make_data(options, gpu, 0, 2)) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    priority = priority_of(on);
    if (first == 0) samples_->load(on, first, inputs, targets);
  }

  mutable int priority = 0;  // of what computes

 private:
  std::unique_ptr<Data> samples_;
};

/// Milliseconds of a step, and the number of its gathers, and of gradients on their way down, that
/// ran under compute for half their time or longer. What does not run under compute is exposed.
struct Times {
  double step, compute, communication, exposed, hidden;
  double down, down_exposed, down_hidden;
};

Times times_of(const std::vector<Slice>& slices, int computing) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const auto length = [](const Slice& slice) {
    return Milliseconds(slice.end.time() - slice.begin.time()).count();
  };
  std::vector<Slice> compute;
  std::ranges::copy_if(slices, std::back_inserter(compute), [&](const Slice& slice) {
    return slice.track == computing && slice.work.sort == Work::Sort::compute;
  });
  Times times{};
  for (const Slice& slice : compute) times.compute += length(slice);
  times.step = Milliseconds(compute.back().end.time() - compute.front().begin.time()).count();
  for (const Slice& slice : slices) {
    const Work& work = slice.work;
    const bool message = work.sort == Work::Sort::message;
    const bool down = work.sort == Work::Sort::transfer && work.place() == Place::host;
    if (!message && !down) continue;
    std::vector<Slice> both = compute;
    both.push_back(slice);
    const OverlapTimes of = overlap_times(both, slice.step);
    const OverlapTime time = down ? of.transfers[Direction::to_host] : of.messages[slice.phase];
    const bool hidden = time.hidden >= time.exposed;
    (down ? times.down : times.communication) += length(slice);
    (down ? times.down_exposed : times.exposed) += Milliseconds(time.exposed).count();
    times.down_hidden += down && hidden;
    times.hidden += work.what == std::string_view("all_gather") && hidden;
  }
  return times;
}

Times medians(std::vector<Times> steps) {
  Times times{};
  for (const auto of : {&Times::step, &Times::compute, &Times::communication, &Times::exposed,
                        &Times::hidden, &Times::down, &Times::down_exposed, &Times::down_hidden}) {
    std::ranges::sort(steps, {}, of);
    times.*of = steps[steps.size() / 2].*of;
  }
  return times;
}

struct Outcome {
  Times times;  // medians
  double bytes_a_step;
  bool messages_first;  // the GPU begins them before what computes
};

Outcome run(const Setting& setting, int prefetch, double bytes_per_second) {
  Options options{.task = Task::mlp, .width = setting.width, .layers = layers};
  options.batch = setting.batch, options.dtype = Dtype::bf16;
  options.lr = 1e-5, options.prefetch = prefetch;
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
  std::vector<Times> steps;
  for (int step = 0; step < warm_up + measured; ++step) {
    trainer->step(data, step);
    trainer->synchronise();
    const std::vector<Slice> slices = recorder.take();
    if (step >= warm_up) steps.push_back(times_of(slices, computing));
  }
  std::int64_t elements = 0;
  for (const auto& phases : comm.sent().elements) {
    elements += std::accumulate(phases.begin(), phases.end(), std::int64_t{0});
  }
  const auto bytes = static_cast<double>(elements * bytes_of(options.dtype));
  return {medians(std::move(steps)), bytes / (warm_up + measured), priority < data.priority};
}

/// The bandwidth with which communication, copies and all, takes its share of the computation.
double calibrated(const Setting& setting) {
  constexpr double none = std::numeric_limits<double>::infinity();  // the wait is no time
  const Outcome copies_only = run(setting, 0, none);
  const double milliseconds =
      setting.share * copies_only.times.compute - copies_only.times.communication;
  return milliseconds > 0 ? copies_only.bytes_a_step / milliseconds * 1e3 : none;
}

bool holds(bool condition, const std::string& what) {
  fmt::print("{}: {}\n", condition ? "yes" : "NO", what);
  return condition;
}

bool judged(bool times_too, const Outcome& without, const Outcome& with) {
  const auto gathers = [](const Outcome& o) {
    return fmt::format("{:.0f} of {} gathers are hidden", o.times.hidden, gathers_a_step);
  };
  bool all = holds(with.messages_first, "messages have the higher priority");
  all &= holds(without.times.hidden <= 2, "prefetch 0: " + gathers(without) + ", at most 2");
  all &= holds(with.times.hidden >= gathers_a_step - 2,
               fmt::format("prefetch 1: {}, at least {}", gathers(with), gathers_a_step - 2));
  if (offloads) {
    all &= holds(with.times.down_hidden >= layers - 2,
                 fmt::format("prefetch 1: of {} layers' gradients {:.0f} go down beside compute, "
                             "at least {}",
                             layers, with.times.down_hidden, layers - 2));
  }
  if (!times_too) return all;
  const double ratio = without.times.compute / without.times.communication;
  const double at_0 = without.times.exposed / without.times.communication;
  const double at_1 = with.times.exposed / with.times.communication;
  all &= holds(ratio >= 2, fmt::format("compute is {:.2f} times communication, at least 2", ratio));
  all &= holds(at_0 >= 0.95, fmt::format("prefetch 0: {:.3f} is exposed, at least 0.95", at_0));
  all &= holds(at_1 <= 0.10, fmt::format("prefetch 1: {:.3f} is exposed, at most 0.10", at_1));
  if (!offloads) return all;
  const double down = with.times.down_exposed / with.times.down;
  constexpr const char* of_down = "prefetch 1: of the way down {:.3f} is exposed, at most 0.15";
  return all & holds(down <= 0.15, fmt::format(of_down, down));
}
}  // namespace
}  // namespace zero::test

int main(int argc, char**) {
  using namespace zero::test;
  const Setting setting = argc > 1 ? small : Setting();
  const zero::Gpus gpus = zero::visible_gpus();
  if (gpus.count == 0) {
    fmt::print("{}\n", gpus.why_none);
    return 77;
  }
  const double bytes_per_second = calibrated(setting);
  fmt::print(
      "{}: {} layers of width {}, batch {}, bf16, and a modelled peer: copies to the host and "
      "back, {:.4g} MB/s between. By the GPU's events, medians of {} steps:\n",
      chapter.name, layers, setting.width, setting.batch, bytes_per_second / 1e6, measured);
  std::vector<Outcome> outcomes;
  for (const int prefetch : {0, 1}) {
    const Times& of = outcomes.emplace_back(run(setting, prefetch, bytes_per_second)).times;
    fmt::print("prefetch {}: a step of {:.2f} ms, compute {:.2f}, communication {:.2f}\n", prefetch,
               of.step, of.compute, of.communication);
  }
  return judged(setting.judges_times, outcomes[0], outcomes[1]) ? 0 : 1;
}
