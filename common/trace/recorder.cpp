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
    for (int k = 0; k < kind_count; ++k) now.bytes[k] = ledger().of(static_cast<Kind>(k)).now;
  });
}

Recorder::~Recorder() {
  ledger().observe({});
  if (sees_streams) Stream::observe({});
  host_observer = nullptr;
}

Track& Recorder::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return tracks_.emplace_back(name);
}

void Recorder::see(Track& track, const Work& work, Kernels* on, bool begins) {
  Mark mark = on ? on->record_time() : nullptr;
  const Moment now{Clock::now(), std::move(mark)};
  const std::lock_guard lock(track.mutex);
  if (begins) {
    track.open.push_back({work, current_phase, current_step, now, {}});
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

Slices Recorder::take() {
  Slices taken;
  const std::lock_guard lock(mutex_);
  for (Track& track : tracks_) {
    std::vector<Slice>& passed = taken.emplace_back(track.name, std::vector<Slice>()).second;
    const std::lock_guard lock_of_track(track.mutex);
    while (!track.ended.empty() && track.ended.front().end.passed()) {
      passed.push_back(std::move(track.ended.front()));
      track.ended.pop_front();
    }
  }
  return taken;
}

void append(Slices& all, const Slices& later) {
  all.resize(std::max(all.size(), later.size()));
  for (std::size_t t = 0; t < later.size(); ++t) {
    const auto& [name, slices] = later[t];
    all[t].first = name;
    all[t].second.insert(all[t].second.end(), slices.begin(), slices.end());
  }
}
}  // namespace zero
