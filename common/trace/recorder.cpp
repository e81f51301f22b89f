// SPDX-License-Identifier: MIT
#include "trace/recorder.hpp"

#include "memory/error.hpp"

namespace zero {
namespace {
/// Returns the elements in fp32, without padding. The work on them must be done.
std::vector<float> values_of(ConstView view) {
  const OnHost host(view);
  return with_type(view.dtype, [&]<class T>(T) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < view.used; ++i) values.push_back(widen(host.as<T>()[i]));
    return values;
  });
}
}  // namespace

Recorder::Recorder(Device& device, bool streams, bool traced, bool values)
    : sees_streams(streams), traced(traced), keeps_values(values), device_(device) {
  here.observer = &add_track("host");
  device.observe(this);
}

Recorder::~Recorder() {
  device_.observe(nullptr);
  here.observer = nullptr;
}

StreamObserver* Recorder::stream_observer(const char* stream) {
  return sees_streams ? &add_track(stream) : nullptr;
}

void Recorder::Track::on_work(const Work& work, Kernels* on, bool begins) {
  expect(begins || !open.empty(), "what ends has begun");
  const DeviceEventPtr begin = begins ? nullptr : open.back().begin.device;
  // On a GPU, begin and end share a reading of both clocks: two would distort the time between.
  const Timestamp now{Clock::now(), on ? on->record_time(begin) : nullptr};
  if (begins) return open.push_back({work, number, here.phase, here.step, here.order, now, {}});
  Slice slice = std::move(open.back());
  open.pop_back();
  slice.end = now;
  // A wait's work is known only when the wait ends: it names what was waited for.
  if (work.type == Work::Type::wait) slice.work = work;
  // All elements sent so far, not only this message's.
  if (work.type == Work::Type::message && recorder.sent) slice.sent = recorder.sent->in_phases();
  // Values are kept on a CPU only, where the work is done by now.
  for (std::size_t i = 0; recorder.keeps_values && i < work.writes.size(); ++i) {
    slice.values.push_back(values_of(work.writes[i]));
  }
  const std::lock_guard lock(mutex);
  ended.push_back(std::move(slice));
}

int Recorder::note(HostAction action) {
  if (!keeps(here.step)) return 0;  // nobody reads it: slices of this step are dropped
  action.time = Clock::now(), action.step = here.step;
  action.phase = here.phase, action.during = here.during;
  for (const Kind kind : every<Kind>) action.bytes[kind] = device_.ledger().of(kind).now;
  for (const CallSite* site = CallSite::innermost; site; site = site->within) {
    action.sites.push_back(site->at);
  }
  actions_.push_back(std::move(action));
  return static_cast<int>(actions_.size()) - 1;
}

void Recorder::on_booked(const Device& on, Kind kind, std::int64_t bytes, const ConstView* view) {
  // Bytes of the host and the disk are not recorded.
  if (&on == &device_) note({.kind = kind, .change = bytes, .view = view ? *view : ConstView()});
}

std::vector<std::string> Recorder::tracks() {
  std::vector<std::string> names;
  for (const Track& track : tracks_) names.push_back(track.name);
  return names;
}

std::vector<Slice> Recorder::take() {
  std::vector<Slice> taken;
  for (Track& track : tracks_) {
    const std::lock_guard lock_of_track(track.mutex);
    for (auto& ended = track.ended; !ended.empty() && ended.front().end.passed();) {
      taken.push_back(std::move(ended.front()));
      ended.pop_front();
    }
  }
  return taken;
}
}  // namespace zero
