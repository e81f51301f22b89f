// SPDX-License-Identifier: MIT
#include "trace/recorder.hpp"

#include "memory/error.hpp"

namespace zero {
namespace {
std::vector<float> values_of(View view) {
  return with_type(view.dtype, [&]<class T>(T) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < view.used; ++i) values.push_back(widen(view.as<T>()[i]));
    return values;
  });
}
}  // namespace

Recorder::Recorder(Device& device, bool streams, int steps, bool values)
    : sees_streams(streams), booked_steps(steps), keeps_values(values), device_(device) {
  here.watcher = &add_track("host");
  device.observe(this);
}

Recorder::~Recorder() {
  device_.observe(nullptr);
  here.watcher = nullptr;
}

Recorder::Track& Recorder::add_track(const char* name) {
  return tracks_.emplace_back(name, static_cast<int>(tracks_.size()), keeps_values);
}

Watcher* Recorder::watcher(const char* stream) {
  return sees_streams ? &add_track(stream) : nullptr;
}

void Recorder::Track::see(const Work& work, Kernels* on, bool begins) {
  expect(begins || !open.empty(), "what ends has begun");
  const Mark begin = begins ? nullptr : open.back().begin.device;
  const Moment now{Clock::now(), on ? on->record_time(begin) : nullptr};
  if (begins) return open.push_back({work, number, here.phase, here.step, now, {}});
  Slice slice = std::move(open.back());
  open.pop_back();
  slice.work = work;  // a wait knows at its end what it waited for
  slice.end = now;
  if (keeps_values) slice.values = values_of(work.made);
  const std::lock_guard lock(mutex);
  ended.push_back(std::move(slice));
}

void Recorder::booked(const Device& on) {
  if (&on != &device_ || here.step > booked_steps) return;
  Booked& now = booked_.emplace_back(Booked{Clock::now(), here.phase, here.step, {}});
  for (const Kind kind : every<Kind>) now.bytes[kind] = on.ledger.of(kind).now;
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
