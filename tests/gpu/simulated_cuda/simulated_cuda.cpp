// SPDX-License-Identifier: MIT
// The runtime of the simulated GPU: devices, memory, streams, events.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

using Clock = std::chrono::steady_clock;
/// The time, perhaps to come, at which a stream passes one cudaEventRecord. May outlive the event.
using Moment = std::shared_future<Clock::time_point>;

namespace {
thread_local int current_device = 0;
/// The driver's lock. A call holds it while it waits for room in a queue: other calls wait, too.
std::mutex& driver = *new std::mutex;
}  // namespace

/// A queue and the thread that works it off. The destructor waits until all work is done.
struct CUstream_st {
  CUstream_st(std::chrono::microseconds delay, int priority) : delay(delay), priority(priority) {}
  ~CUstream_st() {
    push(nullptr);
    thread.join();
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock_of_driver(driver);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.size() < most_queued; });
    queue.push_back(std::move(work));
    changed.notify_all();
  }

  void work_off() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      changed.notify_all();
      lock.unlock();
      if (!work) return;
      work();
    }
  }

  static inline const std::size_t most_queued =
      std::getenv("SIMULATED_QUEUE") ? std::atoi(std::getenv("SIMULATED_QUEUE")) : 1000;
  const std::chrono::microseconds delay;
  const int priority, device = current_device;
  std::mutex mutex;  // guards the queue
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::thread thread{[this] { work_off(); }};
};

struct CUevent_st {
  const bool timed;
  const int device;
  Moment moment;
};

namespace {
constexpr std::size_t page = 4096;

/// Memory between guard bytes: release() finds whether a kernel wrote before or behind it.
class Heap {
 public:
  Heap(const char* name, std::size_t size) : available(size), name_(name) {}

  /// Returns null if fewer bytes are available.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > available) return nullptr;
    void* const pages =
        mmap(nullptr, guarded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(pages) + page;
    std::fill(begin - page, begin, guard_byte);
    std::fill_n(begin, std::min(bytes, most_filled), fresh_byte);
    std::fill(begin + bytes, begin - page + guarded(bytes), guard_byte);
    live_[begin] = bytes;
    available -= bytes;
    return begin;
  }

  void release(void* memory) {
    if (!memory) return;
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(memory);
    if (found == live_.end()) simulated::die("%s memory: freed, but not live", name_);
    const std::size_t bytes = found->second;
    auto* const begin = static_cast<std::byte*>(memory);
    const auto spoilt = [](std::byte byte) { return byte != guard_byte; };
    if (std::any_of(begin - page, begin, spoilt) ||
        std::any_of(begin + bytes, begin - page + guarded(bytes), spoilt)) {
      simulated::die("%s memory: written beside %zu bytes", name_, bytes);
    }
    munmap(begin - page, guarded(bytes));  // whoever still uses it crashes
    live_.erase(found);
    available += bytes;
  }

  bool contains(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto behind = live_.upper_bound(memory);
    if (behind == live_.begin()) return false;
    const auto [begin, size] = *std::prev(behind);
    const auto offset =
        static_cast<const std::byte*>(memory) - static_cast<const std::byte*>(begin);
    return offset + bytes <= size;
  }

  std::atomic<std::size_t> available;  // bytes

 private:
  /// Returns the bytes of whole pages that hold so many, and of a guard page at either side.
  static std::size_t guarded(std::size_t bytes) {
    return (bytes + page - 1) / page * page + 2 * page;
  }

  static constexpr auto guard_byte = std::byte{0xfd}, fresh_byte = std::byte{0xcd};
  /// Bytes of an allocation that get fresh_byte. To fill all would cost more than many a test.
  static constexpr std::size_t most_filled = std::size_t{1} << 20;

  const char* const name_;
  std::mutex mutex_;  // guards live_
  std::map<const void*, std::size_t> live_;
};

constexpr std::size_t total_bytes = std::size_t{8} << 30;
constexpr std::size_t context_bytes = std::size_t{300} << 20;  // taken by CUDA itself

struct Device {
  Heap memory{"device", total_bytes - context_bytes};
  Heap pinned{"pinned", ~std::size_t{0}};
  std::mutex mutex;  // guards the next two
  std::set<cudaStream_t> streams;
  std::size_t created = 0;
  std::recursive_mutex late_mutex;  // guards `late`, and is held while its work is done
  std::vector<std::function<void()>> late;  // what the default stream has still to do
};
Device& device = *new Device;  // never destroyed: the threads of streams may outlive main

/// The delay of the stream that is the `index`th to be created.
std::chrono::microseconds delay_of(std::size_t index) {
  const char* const text = std::getenv("SIMULATED_CUDA_DELAY_US");
  std::vector<std::chrono::microseconds> delays;
  std::istringstream list(text ? text : "0");
  for (std::string item; std::getline(list, item, ',');) delays.emplace_back(std::stol(item));
  return delays[index % delays.size()];
}

/// Returns the stream. Dies unless it is the default one, or exists and is of this thread's GPU.
cudaStream_t existing(cudaStream_t stream) {
  const std::lock_guard lock(device.mutex);
  if (stream && !device.streams.contains(stream)) {
    simulated::die("a stream is used that was destroyed, or never was");
  }
  if (stream && stream->device != current_device) simulated::die("a stream of another GPU is used");
  return stream;
}

/// Does now all that the default stream was given.
void settle() {
  const std::lock_guard lock(device.late_mutex);
  for (const auto& work : std::exchange(device.late, {})) work();
}

/// Queues work for which somebody may wait. The default stream first does all before, then this.
void push(cudaStream_t stream, std::function<void()> work) {
  if (stream) return stream->push(std::move(work));
  settle();
  work();
}

/// Returns the time, still to come, at which the stream has done all that it was given so far.
Moment end_of(cudaStream_t stream) {
  const auto end = std::make_shared<std::promise<Clock::time_point>>();
  Moment moment = end->get_future();
  push(stream, [end] { end->set_value(Clock::now()); });
  return moment;
}

/// Returns whether `memory` is in the heap. If so, dies unless all bytes lie in one allocation.
bool lies_in(Heap& heap, const void* memory, std::size_t bytes) {
  if (!heap.contains(memory, 1)) return false;
  if (heap.contains(memory, bytes)) return true;
  simulated::die("a copy: %zu bytes at %p are not in one live allocation", bytes, memory);
}
bool on_device(const void* memory, std::size_t bytes) {
  return lies_in(device.memory, memory, bytes);
}
}  // namespace

namespace simulated {
void die(const char* format, ...) {
  std::fputs("simulated GPU: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

cudaError_t allocate(void** place, std::size_t bytes, bool on_host) {
  *place = bytes ? (on_host ? device.pinned : device.memory).allocate(bytes) : nullptr;
  return *place || !bytes ? cudaSuccess : cudaErrorMemoryAllocation;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (!existing(stream)) {
    const std::lock_guard lock(device.late_mutex);
    return device.late.push_back(std::move(work));
  }
  stream->push([delay = stream->delay, work = std::move(work)] {
    std::this_thread::sleep_for(delay);
    work();
  });
}

void require_device_memory(const void* memory, std::size_t bytes, const char* what) {
  if (device.memory.contains(memory, bytes)) return;
  die("%s: %zu bytes at %p are not in one live allocation of cudaMalloc", what, bytes, memory);
}
}  // namespace simulated

cudaError_t cudaGetDeviceCount(int* count) {
  const char* const text = std::getenv("SIMULATED_GPUS");
  return *count = text ? std::atoi(text) : 1, cudaSuccess;
}

cudaError_t cudaSetDevice(int number) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (number < 0 || number >= count) simulated::die("there is no device %d", number);
  return current_device = number, cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return *properties = {"simulated GPU", {{static_cast<char>(device + 1)}}}, cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  settle();
  std::vector<Moment> ends;
  std::unique_lock lock(device.mutex);
  for (const cudaStream_t stream : device.streams) ends.push_back(end_of(stream));
  lock.unlock();
  for (const Moment& end : ends) end.wait();
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  cudaDeviceSynchronize();
  return device.memory.release(memory), cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) { return device.pinned.release(memory), cudaSuccess; }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *total = total_bytes, *free = device.memory.available, cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = on_device(to, bytes), from_device = on_device(from, bytes);
  if (!to_device && !from_device) {
    simulated::die("cudaMemcpyAsync: neither side is in memory of cudaMalloc");
  }
  const auto ordinary = [&](const void* side) { return !lies_in(device.pinned, side, bytes); };
  if (!from_device && ordinary(from)) {
    static std::atomic<unsigned> copies = 0;
    if (stream && ++copies % 2) end_of(existing(stream)).wait();
    const auto* const begin = static_cast<const std::byte*>(from);
    simulated::enqueue(stream, [to, stage = std::vector(begin, begin + bytes)] {
      std::memcpy(to, stage.data(), stage.size());
    });
    return cudaSuccess;
  }
  simulated::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  if (!to_device && ordinary(to)) end_of(existing(stream)).wait();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (on_device(to, bytes) && !lies_in(device.pinned, from, bytes)) {
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  }
  settle();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  simulated::require_device_memory(memory, bytes, "cudaMemset");
  simulated::enqueue(stream, [=] {
    // Whole pages of zeros are had from the system anew, without touching them.
    const bool anew = value == 0 && reinterpret_cast<std::uintptr_t>(memory) % page == 0;
    const std::size_t pages = anew ? bytes / page * page : 0;
    if (pages) madvise(memory, pages, MADV_DONTNEED);
    std::memset(static_cast<std::byte*>(memory) + pages, value, bytes - pages);
  });
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const bool count = attribute == cudaDevAttrMultiProcessorCount;
  return *value = count ? simulated::multiprocessors : 64, cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return *priority = existing(stream)->priority, cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking) simulated::die("a stream that waits for the default one");
  const std::lock_guard lock(device.mutex);
  *stream = new CUstream_st(delay_of(device.created++), priority);
  device.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_lock lock(device.mutex);
  if (device.streams.erase(stream) == 0) simulated::die("cudaStreamDestroy: no live stream");
  lock.unlock();
  return delete stream, cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  end_of(existing(stream)).wait();
  thread_local std::minstd_rand random;  // the same times in every run
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 2 * (random() % 2000)));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return push(existing(stream), [moment = event->moment] { moment.wait(); }), cudaSuccess;
}

/// Recorded at once: what waits for an event that was never recorded does not wait.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const bool timed = flags != cudaEventDisableTiming;
  return *event = new CUevent_st{timed, current_device, end_of(nullptr)}, cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != current_device) simulated::die("an event of another GPU is recorded");
  return event->moment = end_of(existing(stream)), cudaSuccess;
}

/// Dies at another GPU's event. CUDA answers, but may set up this thread's GPU, and take memory.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->device != current_device) simulated::die("an event of another GPU is asked for");
  const std::lock_guard lock(driver);
  const bool passed = event->moment.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return passed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->timed || !end->timed || cudaEventQuery(start) || cudaEventQuery(end)) {
    simulated::die("cudaEventElapsedTime: an event has no time, or not yet");
  }
  const auto time = end->moment.get() - start->moment.get();
  *milliseconds = std::chrono::duration<float, std::milli>(time).count();
  return cudaSuccess;
}
