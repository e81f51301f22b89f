// SPDX-License-Identifier: MIT
// Chapters 06 to 08 with one late stream: compute, messages, copies over the bus, the host's cores,
// or the disk. Each run must have the replay's bits, and no race under ThreadSanitizer. For every
// wait of a chapter there is a case here that fails without it (notes/streams.md).
#include <map>
#include <set>

#include "07_offload/offload.hpp"
#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
TEST_SUITE_BEGIN("schedules");

namespace {
constexpr std::chrono::milliseconds late_by{2};

/// With five layers, a window uses each slot several times in forward and in backward.
Options schedule_options(Dtype dtype, int micro_batches) {
  if (!chapter.mixed_precision) dtype = Dtype::fp32;
  Options o = mlp_options(24, 5, dtype);
  o.steps = o.batch = 4, o.accumulate = micro_batches;
  o.piece = 104;  // elements: several pieces per layer
  return o;
}

void check_runs(int most_prefetch = 2) {
  check_third_step_skipped(schedule_options(Dtype::fp32, 1), most_prefetch);
  check_third_step_skipped(schedule_options(Dtype::bf16, 2), most_prefetch);
}

void check_with_late(const char* stream, bool chapter_has_it = true) {
  if (!chapter_has_it) return;
  const Delay delay(stream, late_by, device());
  check_runs();
}
}  // namespace

TEST_CASE("compute is late") { check_with_late("compute"); }
TEST_CASE("communication is late") { check_with_late("communication"); }
TEST_CASE("copies are late") { check_with_late("copies", chapter.stages()); }
TEST_CASE("copies up are late") { check_with_late("copies up", chapter.uses(Place::disk)); }
TEST_CASE("copies down are late") { check_with_late("copies down", chapter.uses(Place::disk)); }
TEST_CASE("the host's cores are late") { check_with_late("host cores", chapter.offloads()); }

TEST_CASE("the host's cores are late, with all state in the host's memory") {
  if (!chapter.uses(Place::disk)) return;
  const Delay delay("host cores", late_by, device());
  Options options = schedule_options(Dtype::fp32, 1);
  options.state = Place::host;
  check_third_step_skipped(options, 0);
}

TEST_CASE("the disk reads late") { check_with_late("reads", chapter.uses(Place::disk)); }
TEST_CASE("the disk writes late") { check_with_late("writes", chapter.uses(Place::disk)); }

TEST_CASE("the bus is slow") {
  if (!chapter.offloads()) return;
  // At this speed a copy of a layer's bf16 shard takes as long as a late task is late.
  const Layout layout = layout_here(schedule_options(Dtype::bf16, 1));
  const auto bytes = static_cast<double>(layout.shard_size(0) * 2);
  device().bus.gb_per_s = bytes / std::chrono::nanoseconds(late_by).count();
  check_runs(1);
  device().bus.gb_per_s = 0;
}

TEST_CASE("Offload alone: Adam waits until gradients are divided and copied to the host") {
  if (!chapter.stages()) return;
  const Delay delay("copies", late_by, device());
  const Options options = schedule_options(Dtype::fp32, 2);
  const Layout layout = layout_here(options);
  Stream compute("compute", device(), Stream::Mode::asynchronous);
  Sharded grads(device(), layout, State::gradients, Dtype::fp32);
  Sharded seen(device().host(), layout, State::gradients, Dtype::fp32);
  fill(grads.view(), 6);
  Offload offload(options, layout, compute);
  for (int l = 0; l < layout.layers(); ++l) {
    offload.divide_and_copy_to_host(grads.shard(l), 2, Event());
  }
  offload.wait_for_copies();
  Stream& adam = offload.host_stream();
  for (int l = 0; l < layout.layers(); ++l) copy(adam, offload.staged_grads(l), seen.shard(l));
  adam.synchronise();
  CHECK(values(seen.view()) == std::vector<float>(layout.shard_size(), 3));
}

namespace {
/// Delays Adam, counts the layers that Adam has updated, and notes each stream's threads.
struct DelayingObserver : DeviceObserver {
  struct Track : StreamObserver {
    void on_work(const Work& work, Kernels*, bool begins) override {
      threads.insert(std::this_thread::get_id());
      if (work.type != Work::Type::compute || work.what != std::string_view("adam")) return;
      begins ? std::this_thread::sleep_for(late_by) : void(++updated);
    }
    std::set<std::thread::id> threads;
    std::atomic<int> updated = 0;  // layers, by Adam
  };
  DelayingObserver() { device().observe(this); }
  ~DelayingObserver() override { device().observe(nullptr); }
  StreamObserver* stream_observer(const char* stream) override { return &streams[stream]; }
  void on_booked(const Device&, Kind, std::int64_t, const ConstView*) override {
    if (!std::exchange(ends, false)) return;
    const std::atomic<int>& updated = streams[by].updated;
    CHECK(updated.load() == 5);
    // Waits, because freeing Adam's tensors would crash the process before it prints a failure.
    for (int i = 0; i < 1000 && updated.load() < 5; ++i) std::this_thread::sleep_for(late_by);
  }
  void observe_one_step(Dtype dtype) {
    Options options = schedule_options(dtype, 1);
    options.piece = 1 << 20;  // Adam runs once a layer
    Part part(options);
    part.step(0);
    ends = true;
  }

  const char* const by = chapter.offloads() ? "host cores" : "compute";
  std::map<std::string, Track> streams;
  bool ends = false;  // the trainer is destroyed next, and frees its tensors
};
}  // namespace

TEST_CASE("a trainer's tensors go when Adam is done with them, wherever it runs") {
  DelayingObserver().observe_one_step(Dtype::bf16);
}

TEST_CASE("the host thread and each stream are threads of their own") {
  DelayingObserver seen;
  seen.observe_one_step(Dtype::fp32);
  std::string names;
  std::set<std::thread::id> all{std::this_thread::get_id()};
  for (const auto& [name, stream] : seen.streams) {
    names += name + "; ";
    CHECK(stream.threads.size() == 1);
    all.insert(stream.threads.begin(), stream.threads.end());
  }
  std::string own = "communication; compute; ";
  if (chapter.stages()) own += "copies; host cores; ";
  if (chapter.uses(Place::disk)) own += "copies down; copies up; host cores; reads; writes; ";
  CHECK(names == own);
  CHECK(all.size() == seen.streams.size() + 1);
}

TEST_SUITE_END();
}  // namespace zero::test
