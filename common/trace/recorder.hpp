// SPDX-License-Identifier: MIT
// What a rank did when, and what it held. Nothing that is recorded waits for the recorder.
#pragma once
#include <deque>
#include <mutex>
#include <vector>

#include "comm/communicator.hpp"

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
  int step;  // of the whole run, from 1; 0: set-up
  int order;  // of Orders: the one that put it on its stream
  Moment begin, end;
  By<Phase, std::int64_t> sent{};  // elements, by this rank up to the end of a message
  std::vector<std::vector<float>> values{};  // of each view that the work writes, at its end
};

/// What the trainer's thread did, in the order of the program: it put work on a stream, or borrowed
/// memory or gave it back.
struct Order {
  Clock::time_point time{};
  Phase phase{}, during{};  // that needs it; in which the host was
  int step = 0;
  By<Kind, std::int64_t> bytes{};  // of the device, in use after that
  std::vector<std::source_location> sites{};  // of the call: the trainer's last
  Kind kind{};
  std::int64_t change = 0;  // in bytes of that kind; 0: work
  View view{};  // that is borrowed or given back
};

/// One at a time on a device. The trainer's thread makes it before the streams that it outlives.
class Recorder : public Observer {
 public:
  static constexpr int traced_steps = 8;

  /// streams: sees them. traced: keeps orders of its first steps. values: and what CPU work writes.
  Recorder(Device& device, bool streams, bool traced, bool values);
  ~Recorder() override;

  const bool sees_streams, traced, keeps_values;
  const Sent* sent = nullptr;  // this rank's communicator counts here; null: nobody does
  std::int64_t before = 0;  // the step after which the run is resumed

  bool keeps(int step) const { return traced && step <= before + traced_steps; }
  /// Of set-up and of the first steps.
  const std::vector<Order>& orders() const { return orders_; }
  /// The tracks' names, by number: the host, then the streams as they were constructed.
  std::vector<std::string> tracks();
  /// Those that ended (on a device: passed) since the last call; a track's in order of their ends.
  std::vector<Slice> take();

 private:
  /// Of a stream or the host. Its own mutex: to look on must not order one stream after another.
  struct Track : Watcher {
    Track(const char* name, int number, Recorder& all) : name(name), number(number), all(all) {}
    void see(const Work& work, Kernels* on, bool begins) override;
    int queued() override { return all.note({}); }

    const std::string name;
    const int number;
    Recorder& all;
    std::vector<Slice> open;  // begun, not ended: the last one within the others
    std::mutex mutex;  // guards the next
    std::deque<Slice> ended;  // in the order of their ends; their device need not be past them yet
  };

  Watcher* watcher(const char* stream) override;
  void booked(const Device& on, Kind kind, std::int64_t bytes, const View* view) override;
  Track& add_track(const char* name) {
    return tracks_.emplace_back(name, static_cast<int>(tracks_.size()), *this);
  }
  /// Completes and keeps the order. Returns its place among orders().
  int note(Order order);

  Device& device_;
  std::deque<Track> tracks_;
  std::vector<Order> orders_;
};
}  // namespace zero
