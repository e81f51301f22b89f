// SPDX-License-Identifier: MIT
// What a rank did when, and what it held: every task and wait of its streams, every phase of the
// host, every change of the ledger. It looks on; nothing that is recorded waits for it.
#pragma once
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

/// A piece of work or a wait, on the host's track a phase or a wait for a stream; within one track
/// slices follow each other or lie within each other.
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

/// One at a time on a device, on the thread that runs the trainer, before the streams that it is to
/// see; it outlives them.
class Recorder : public Observer {
 public:
  /// streams: whether it looks at them; else at the books and the phases alone. steps: the first
  /// ones of which it keeps what was booked. values: whether it keeps what work on the CPU makes.
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
  /// Those that ended since the last call and, on a device, have passed; of each track in the order
  /// of their ends.
  std::vector<Slice> take();

 private:
  /// What a stream, or the host, did. Its own mutex, so that looking on orders two streams no more
  /// than the host does that takes from both.
  struct Track : Watcher {
    Track(const char* name, int number, bool keeps_values)
        : name(name), number(number), keeps_values(keeps_values) {}
    void see(const Work& work, Kernels* on, bool begins) override;

    const std::string name;
    const int number;
    const bool keeps_values;
    std::mutex mutex;  // guards the next two
    std::vector<Slice> open;  // begun, not ended: the last one within the others
    std::deque<Slice> ended;  // in the order of their ends; their device need not be past them yet
  };

  Watcher* watcher(const char* stream) override;
  void booked(const Device& on) override;
  Track& add_track(const char* name);

  Device& device_;
  std::mutex mutex_;  // guards the next: streams may be made on any thread
  std::deque<Track> tracks_;
  std::vector<Booked> booked_;
};
}  // namespace zero
