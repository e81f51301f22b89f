// SPDX-License-Identifier: MIT
// What a rank did when, and what it held. Nothing that is recorded waits for the recorder.
#pragma once
#include <deque>
#include <mutex>
#include <vector>

#include "compute/stream.hpp"

namespace zero {
using Clock = std::chrono::steady_clock;

/// When the host was there, or, if there is a mark, when its device gets there.
struct Moment {
  Clock::time_point host;
  Mark device;

  bool passed() const { return !device || device->passed(); }
  /// Of a passed moment, by the host's clock.
  Clock::time_point time() const { return device ? device->time() : host; }
};

/// Work or a wait, on the host's track a phase or a wait. A track's slices follow or nest.
struct Slice {
  Work work;
  int track;  // 0: the host's
  Phase phase;
  int step;  // from 1; 0: before the first
  Moment begin, end;
  std::vector<float> values{};  // in what the work made, at its end
};

/// The device's bytes in use after they changed, in the order in which they are booked.
struct Booked {
  Clock::time_point time;
  Phase phase;
  int step;
  By<Kind, std::int64_t> bytes;
};

/// What was seen and is kept.
struct Recording {
  std::vector<std::string> tracks;  // their names: the host, the streams as they were constructed
  std::vector<Slice> slices;  // of each track in the order of their ends
  std::vector<Booked> booked;
};

/// One at a time on a device. The trainer's thread makes it before the streams that it outlives.
class Recorder : public Observer {
 public:
  /// streams: sees them, too. steps: so many have bookings kept. values: keeps what CPU work makes.
  Recorder(Device& device, bool streams, int steps, bool values = false);
  ~Recorder() override;

  const bool sees_streams;
  const int booked_steps;
  const bool keeps_values;
  static constexpr int traced_steps = 8;

  /// Bytes booked in set-up and in those steps, in order.
  const std::vector<Booked>& booked() const { return booked_; }
  /// Their names, by number.
  std::vector<std::string> tracks();
  /// Those that ended (on a device: passed) since the last call; a track's in order of their ends.
  std::vector<Slice> take();

 private:
  /// Of a stream or the host. Its own mutex: to look on must not order one stream after another.
  struct Track : Watcher {
    Track(const char* name, int number, bool keeps_values)
        : name(name), number(number), keeps_values(keeps_values) {}
    void see(const Work& work, Kernels* on, bool begins) override;

    const std::string name;
    const int number;
    const bool keeps_values;
    std::vector<Slice> open;  // begun, not ended: the last one within the others
    std::mutex mutex;  // guards the next
    std::deque<Slice> ended;  // in the order of their ends; their device need not be past them yet
  };

  Watcher* watcher(const char* stream) override;
  void booked(const Device& on) override;
  Track& add_track(const char* name);

  Device& device_;
  std::deque<Track> tracks_;
  std::vector<Booked> booked_;
};
}  // namespace zero
