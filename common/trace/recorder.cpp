// SPDX-License-Identifier: MIT
#include "trace/recorder.hpp"

#include "memory/error.hpp"

namespace zero {
Recorder::Recorder(bool streams)
    : sees_streams(streams),
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
    if (current_step > traced_steps) return;
    Booked& now = booked_.emplace_back(Booked{Clock::now(), current_phase, current_step, {}});
    for (int k = 0; k < kind_count; ++k) now.bytes[k] = ledger().of(static_cast<Kind>(k)).now;
  });
}

Recorder::~Recorder() {
  ledger().observe({});
  Stream::observe({});
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
  track.done.push_back(std::move(slice));
}

Slices Recorder::take() {
  Slices taken;
  const std::lock_guard lock(mutex_);
  for (Track& track : tracks_) {
    const std::lock_guard lock_of_track(track.mutex);
    const auto yet_to_pass =
        std::stable_partition(track.done.begin(), track.done.end(),
                              [](const Slice& slice) { return slice.end.passed(); });
    taken.emplace_back(track.name, std::vector<Slice>(std::make_move_iterator(track.done.begin()),
                                                      std::make_move_iterator(yet_to_pass)));
    track.done.erase(track.done.begin(), yet_to_pass);
  }
  return taken;
}
}  // namespace zero
