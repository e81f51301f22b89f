// SPDX-License-Identifier: MIT
// Threads that share a loop over independent elements. Which thread takes which changes no bit.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace zero {
/// Its threads sleep between calls and end with the Team. One thread at a time may call the Team.
class Team {
 public:
  static constexpr std::int64_t piece = 16 << 10;  // elements; a slow core takes fewer pieces

  /// threads: at least 1, the caller's own among them. The others start when they are first needed.
  explicit Team(int threads) : others_(threads - 1) {}
  ~Team() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    begin_.notify_all();
  }

  /// Calls task(first, size) for each piece of [0, count), waits for all. A throw ends the process.
  void each_piece(std::int64_t count,
                  const std::function<void(std::int64_t first, std::int64_t size)>& task) noexcept {
    if (count <= piece) return task(0, count);
    for (std::jthread& other : others_) {
      if (!other.joinable()) other = std::jthread([this] { serve(); });
    }
    std::unique_lock lock(mutex_);
    task_ = &task, next_ = 0, count_ = count;
    begin_.notify_all();
    work(lock);
    end_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (begin_.wait(lock, [&] { return ended_ || next_ < count_; }), !ended_) work(lock);
  }

  /// Takes pieces until none is left.
  void work(std::unique_lock<std::mutex>& lock) {
    while (next_ < count_) {
      const std::int64_t first = next_, some = std::min(piece, count_ - first);
      next_ += some, ++busy_;
      lock.unlock();
      (*task_)(first, some);
      lock.lock();
      if (--busy_ == 0) end_.notify_one();
    }
  }

  std::mutex mutex_;  // guards all members but others_
  std::condition_variable begin_, end_;
  const std::function<void(std::int64_t, std::int64_t)>* task_ = nullptr;
  std::int64_t next_ = 0, count_ = 0;
  int busy_ = 0;  // pieces that are taken and not done
  bool ended_ = false;
  std::vector<std::jthread> others_;  // last: they use all of the above
};
}  // namespace zero
