// SPDX-License-Identifier: MIT
// Records what a rank does when, and the memory in use. No stream waits for another because of it.
#pragma once
#include <deque>
#include <mutex>
#include <vector>

#include "comm/communicator.hpp"

namespace zero {
using Clock = std::chrono::steady_clock;

struct Timestamp {
  Clock::time_point host;  // when it was recorded
  DeviceEventPtr device;  // the moment when the device passes it; null: the moment is `host`

  bool passed() const { return !device || device->passed(); }
  /// Returns when it was, by the host's clock. It must have passed.
  Clock::time_point time() const { return device ? device->time() : host; }
};

/// A stream's work or wait, or the host's phase or wait. A track's slices are disjoint or nested.
struct Slice {
  Work work;
  int track;  // number of the stream's track; 0: the host's
  Phase phase;
  int step;  // of the whole run, from 1; 0: set-up
  int order;  // number of the HostAction that put the work on its stream
  Timestamp begin, end;
  By<Phase, std::int64_t> sent{};  // elements that this rank has sent until the end of a message
  std::vector<std::vector<float>> values{};  // of each view that the work writes, if they are kept
};

/// One action of the trainer's thread: it puts work on a stream, borrows memory or gives it back.
struct HostAction {
  Clock::time_point time{};
  Phase phase{}, during{};  // the phase that needs it; the phase in which the host is
  int step = 0;
  By<Kind, std::int64_t> bytes{};  // in use on the device after it
  std::vector<std::source_location> sites{};  // of the calls that led to it; the trainer's is last
  Kind kind{};
  std::int64_t change = 0;  // bytes of that kind, < 0 if they are given back; 0: it is work
  ConstView view{};  // what is borrowed or given back
};

/// Observes one device. The trainer's thread makes it before the streams, destroys it after them.
class Recorder : public DeviceObserver {
 public:
  static constexpr int traced_steps = 8;  // in a trace, from the run's first or resumed step on

  /// streams: record their work. traced: keep the first steps' actions. values: what work writes.
  Recorder(Device& device, bool streams, bool traced, bool values);
  ~Recorder() override;

  const bool sees_streams, traced, keeps_values;
  const Sent* sent = nullptr;  // what this rank's communicator has sent; null: unknown
  std::int64_t before = 0;  // steps that were made before the run was resumed

  bool keeps(int step) const { return traced && step <= before + traced_steps; }
  const std::vector<HostAction>& actions() const { return actions_; }
  /// Returns the tracks' names, by number: the host's, then the streams' in order of construction.
  std::vector<std::string> tracks();
  /// Returns the slices that have ended since the last call; those of a track in the order of ends.
  std::vector<Slice> take();

 private:
  /// Records a stream or the host. Each track has a mutex, so that no stream waits for another.
  struct Track : StreamObserver {
    Track(const char* name, int number, Recorder& recorder)
        : name(name), number(number), recorder(recorder) {}
    void on_work(const Work& work, Kernels* on, bool begins) override;
    int on_queued() override { return recorder.note({}); }

    const std::string name;
    const int number;
    Recorder& recorder;
    std::vector<Slice> open;  // begun and not ended; each is nested in the one before
    std::mutex mutex;  // guards `ended`
    std::deque<Slice> ended;  // in the order of their ends; a GPU may not have reached these yet
  };

  StreamObserver* stream_observer(const char* stream) override;
  void on_booked(const Device& on, Kind kind, std::int64_t bytes, const ConstView* view) override;
  Track& add_track(const char* name) {
    return tracks_.emplace_back(name, static_cast<int>(tracks_.size()), *this);
  }
  /// Keeps the action with the thread's position. Returns its number in actions(), 0 if not kept.
  int note(HostAction action);

  Device& device_;
  std::deque<Track> tracks_;
  std::vector<HostAction> actions_;
};
}  // namespace zero
