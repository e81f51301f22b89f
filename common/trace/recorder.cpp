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

Recorder::Recorder(bool streams, int steps, bool values)
    : sees_streams(streams),
      booked_steps(steps),
      keeps_values(values),
      host_(add_track("host")),
      host_observer_([this](const Work& work, bool begins) { see(host_, work, nullptr, begins); }) {
  host_observer = &host_observer_;
  if (streams)
    Stream::observe([this](const std::string& stream) -> Stream::Observer {
      return [this, &track = add_track(stream)](const Work& work, Kernels& on, bool begins) {
        see(track, work, &on, begins);
      };
    });
  ledger().observe([this] {
    if (current_step > booked_steps) return;
    Booked& now = booked_.emplace_back(Booked{Clock::now(), current_phase, current_step, {}});
    for (const Kind kind : every<Kind>) now.bytes[kind] = ledger().of(kind).now;
  });
}

Recorder::~Recorder() {
  ledger().observe({});
  if (sees_streams) Stream::observe({});
  host_observer = nullptr;
}

Recorder::Track& Recorder::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return tracks_.emplace_back(name, static_cast<int>(tracks_.size()));
}

void Recorder::see(Track& track, const Work& work, Kernels* on, bool begins) {
  Mark mark = on ? on->record_time() : nullptr;
  const Moment now{Clock::now(), std::move(mark)};
  const std::lock_guard lock(track.mutex);
  if (begins) {
    track.open.push_back({work, track.number, current_phase, current_step, now, {}});
    return;
  }
  expect(!track.open.empty(), "what ends has begun");
  Slice slice = std::move(track.open.back());
  track.open.pop_back();
  slice.work = work;  // a wait knows at its end what it waited for
  slice.end = now;
  if (keeps_values) slice.values = values_of(work.made);
  track.ended.push_back(std::move(slice));
}

std::vector<std::string> Recorder::tracks() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Track& track : tracks_) names.push_back(track.name);
  return names;
}

std::vector<Slice> Recorder::take() {
  std::vector<Slice> taken;
  const std::lock_guard lock(mutex_);
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
