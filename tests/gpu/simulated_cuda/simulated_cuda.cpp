// SPDX-License-Identifier: MIT
// The runtime of the simulated GPU: devices, memory, streams, events.
#include "simulated_cuda.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {
using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr std::size_t total_bytes = std::size_t{8} << 30;
constexpr std::size_t context_bytes = std::size_t{300} << 20;

/// Memory between guards, so that a kernel which writes past its end is found.
class Heap {
 public:
  explicit Heap(const char* name)
      : name_(name) {}

  void* allocate(std::size_t bytes) {
    const std::size_t padded = (bytes + guard - 1) / guard * guard;
    void* const pages = mmap(nullptr,
                             guard + padded + guard,
                             PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS,
                             -1,
                             0);
    if (pages == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(pages);
    std::fill_n(begin, guard, guard_byte);
    std::fill_n(begin + guard, std::min(bytes, most_filled), fresh_byte);
    std::fill_n(begin + guard + bytes, padded - bytes + guard, guard_byte);
    const std::lock_guard lock(mutex_);
    live_[begin + guard] = bytes;
    used_ += bytes;
    return begin + guard;
  }

  /// False when this is not the begin of a live allocation.
  bool release(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<std::byte*>(memory));
    if (found == live_.end()) return false;
    const auto [begin, bytes] = *found;
    const std::size_t padded = (bytes + guard - 1) / guard * guard;
    const auto intact = [](std::byte byte) { return byte == guard_byte; };
    if (!std::all_of(begin - guard, begin, intact)) {
      simulated::die("%s memory: written before the begin of %zu bytes", name_, bytes);
    }
    if (!std::all_of(begin + bytes, begin + padded + guard, intact)) {
      simulated::die("%s memory: written past the end of %zu bytes", name_, bytes);
    }
    munmap(begin - guard, guard + padded + guard);  // whoever still uses it crashes
    live_.erase(found);
    used_ -= bytes;
    return true;
  }

  /// Whether all these bytes lie in one live allocation.
  bool contains(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(memory));
    auto piece = live_.upper_bound(begin);
    if (piece == live_.begin()) return false;
    --piece;
    const auto offset = static_cast<std::size_t>(begin - piece->first);
    return offset <= piece->second && bytes <= piece->second - offset;
  }

  std::size_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  static constexpr std::size_t guard = 256;
  static constexpr auto guard_byte = std::byte{0xfd};
  static constexpr auto fresh_byte = std::byte{0xcd};
  /// What lies behind is zero: filling it would cost more than the test that wants the memory.
  static constexpr std::size_t most_filled = std::size_t{1} << 20;

  const char* const name_;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> live_;
  std::size_t used_ = 0;
};

/// The moment at which a stream passes one cudaEventRecord. It may outlive its event.
class Moment {
 public:
  void settle() {
    const std::lock_guard lock(mutex_);
    passed_ = true;
    time_ = steady_clock::now();
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
  }

  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

  steady_clock::time_point time() {
    const std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  steady_clock::time_point time_;
};
}  // namespace

/// A queue and the thread that works it off; the thread keeps it alive after cudaStreamDestroy.
struct CUstream_st {
  explicit CUstream_st(microseconds delay)
      : delay(delay) {}

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    ++issued;
    changed.notify_one();
  }

  void close() {
    const std::lock_guard lock(mutex);
    closed = true;
    changed.notify_one();
  }

  void wait_for_issued() {
    std::unique_lock lock(mutex);
    done.wait(lock, [this, target = issued] { return completed >= target; });
  }

  void loop() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closed || !queue.empty(); });
      if (queue.empty()) return;
      std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
      work = nullptr;  // what it holds ends before anyone hears that it is done
      lock.lock();
      ++completed;
      done.notify_all();
    }
  }

  const microseconds delay;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::condition_variable done;
  std::deque<std::function<void()>> queue;
  std::uint64_t issued = 0;
  std::uint64_t completed = 0;
  bool closed = false;
};

struct CUevent_st {
  explicit CUevent_st(bool timed)
      : timed(timed) {}

  std::shared_ptr<Moment> latest() {
    const std::lock_guard lock(mutex);
    return moment;
  }

  const bool timed;
  std::mutex mutex;
  std::shared_ptr<Moment> moment;  // null: never recorded
};

namespace {
/// All that is shared. Never destroyed: the threads of streams may outlive main.
struct Device {
  std::vector<std::shared_ptr<CUstream_st>> running_streams() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<CUstream_st>> streams;
    for (const auto& weak : running) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
    return streams;
  }

  std::shared_ptr<CUstream_st> find(cudaStream_t handle) {
    const std::lock_guard lock(mutex);
    const auto found = handles.find(handle);
    if (found == handles.end()) simulated::die("a stream is used that was destroyed, or never was");
    return found->second;
  }

  Heap memory{"device"};
  Heap pinned{"pinned"};
  std::mutex default_stream;  // held while it works
  std::mutex mutex;  // guards all below
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> handles;
  std::vector<std::weak_ptr<CUstream_st>> running;  // also those that were destroyed while at work
  std::size_t created = 0;
};

Device& device() {
  static Device& device = *new Device;
  return device;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int count_devices() {
  const char* const text = std::getenv("SIMULATED_GPUS");
  return text ? std::atoi(text) : 1;
}

/// The delay of the stream that is the `index`th to be created.
microseconds delay_of(std::size_t index) {
  const char* const text = std::getenv("SIMULATED_CUDA_DELAY_US");
  std::vector<microseconds> delays;
  std::istringstream list(text ? text : "");
  for (std::string item; std::getline(list, item, ',');) {
    delays.emplace_back(std::strtol(item.c_str(), nullptr, 10));
  }
  return delays.empty() ? microseconds(0) : delays[index % delays.size()];
}

/// What the default stream does it does at once, on the caller's thread; no other waits for it.
void run_on_default_stream(const std::function<void()>& work) {
  const std::lock_guard lock(device().default_stream);
  work();
}

void wait_for_all_streams() {
  for (const auto& stream : device().running_streams()) stream->wait_for_issued();
}

/// Each end is device memory or the host's; what is copied in a stream's order has page-locked
/// memory there.
void require_copyable(const void* memory, std::size_t bytes, bool async) {
  const char* const call = async ? "cudaMemcpyAsync" : "cudaMemcpy";
  if (device().memory.contains(memory, 1)) {
    return simulated::require_device_memory(memory, bytes, call);
  }
  if (async && !device().pinned.contains(memory, bytes)) {
    simulated::die("%s: the host's side is not memory of cudaMallocHost", call);
  }
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

void enqueue(cudaStream_t handle, std::function<void()> work) {
  if (!handle) return run_on_default_stream(work);
  const auto stream = device().find(handle);
  if (stream->delay.count() == 0) return stream->push(std::move(work));
  stream->push([delay = stream->delay, work = std::move(work)] {
    std::this_thread::sleep_for(delay);
    work();
  });
}

void require_device_memory(const void* memory, std::size_t bytes, const char* what) {
  if (device().memory.contains(memory, bytes)) return;
  die("%s: %zu bytes at %p are not in one live allocation of cudaMalloc", what, bytes, memory);
}

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const dim3 grid = config.gridDim;
  const dim3 block = config.blockDim;
  const auto within = [](unsigned int extent, unsigned int most) {
    return extent >= 1 && extent <= most;
  };
  const bool legal = within(grid.x, 0x7fffffff) && within(grid.y, 65535) && within(grid.z, 65535) &&
                     within(block.x, 1024) && within(block.y, 1024) && within(block.z, 64) &&
                     block.x * block.y * block.z <= 1024;
  if (!legal) return remember(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes) die("a kernel asks for dynamic shared memory: it is not simulated");
  enqueue(config.stream,
          [grid, block, thread = std::move(thread)] { run_grid(grid, block, thread); });
  return cudaSuccess;
}
}  // namespace simulated

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = count_devices();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= count_devices()) return remember(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= count_devices()) return remember(cudaErrorInvalidDevice);
  *properties = {.name = "simulated GPU",
                 .totalGlobalMem = total_bytes,
                 .sharedMemPerBlock = std::size_t{48} << 10,
                 .warpSize = 32,
                 .maxThreadsPerBlock = 1024,
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = 4};
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  wait_for_all_streams();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** place, std::size_t bytes) {
  *place = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > total_bytes - context_bytes - device().memory.used()) {
    return remember(cudaErrorMemoryAllocation);
  }
  *place = device().memory.allocate(bytes);
  return *place ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* memory) {
  if (!memory) return cudaSuccess;
  wait_for_all_streams();
  return device().memory.release(memory) ? cudaSuccess : remember(cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** place, std::size_t bytes) {
  *place = bytes ? device().pinned.allocate(bytes) : nullptr;
  return *place || !bytes ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* memory) {
  if (!memory || device().pinned.release(memory)) return cudaSuccess;
  return remember(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = total_bytes;
  *free = total_bytes - context_bytes - device().memory.used();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (bytes == 0) return cudaSuccess;
  require_copyable(to, bytes, false);
  require_copyable(from, bytes, false);
  run_on_default_stream([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  require_copyable(to, bytes, true);
  require_copyable(from, bytes, true);
  simulated::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

/// A large piece of zeros is had from the system anew, without touching its pages.
static void fill(std::byte* memory, int value, std::size_t bytes) {
  constexpr std::size_t page = 4096;
  auto* const first = memory + (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
  const std::size_t head = first - memory;
  if (value != 0 || bytes < 16 * page) {
    std::memset(memory, value, bytes);
    return;
  }
  const std::size_t pages = (bytes - head) / page * page;
  std::memset(memory, 0, head);
  madvise(first, pages, MADV_DONTNEED);
  std::memset(first + pages, 0, bytes - head - pages);
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  simulated::require_device_memory(memory, bytes, "cudaMemset");
  simulated::enqueue(stream, [=] { fill(static_cast<std::byte*>(memory), value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) simulated::die("a stream that waits for the default one");
  const std::lock_guard lock(device().mutex);
  const auto stream = std::make_shared<CUstream_st>(delay_of(device().created++));
  std::erase_if(device().running, [](const auto& weak) { return weak.expired(); });
  device().running.push_back(stream);
  device().handles[stream.get()] = stream;
  std::thread([stream] { stream->loop(); }).detach();
  *handle = stream.get();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (!handle) return remember(cudaErrorInvalidResourceHandle);
  device().find(handle)->close();
  const std::lock_guard lock(device().mutex);
  device().handles.erase(handle);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream) {
    device().find(stream)->wait_for_issued();
  } else {
    run_on_default_stream([] {});
  }
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (flags != 0) return remember(cudaErrorInvalidValue);
  const auto moment = event->latest();
  if (!moment) return cudaSuccess;
  if (stream) {
    device().find(stream)->push([moment] { moment->wait(); });
  } else {
    moment->wait();
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  *event = new CUevent_st((flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  const auto moment = std::make_shared<Moment>();
  {
    const std::lock_guard lock(event->mutex);
    event->moment = moment;
  }
  if (stream) {
    device().find(stream)->push([moment] { moment->settle(); });
  } else {
    run_on_default_stream([moment] { moment->settle(); });
  }
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  const auto moment = event->latest();
  return !moment || moment->passed() ? cudaSuccess : remember(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (const auto moment = event->latest()) moment->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start || !end || !start->timed || !end->timed) {
    return remember(cudaErrorInvalidResourceHandle);
  }
  const auto from = start->latest();
  const auto to = end->latest();
  if (!from || !to) return remember(cudaErrorInvalidResourceHandle);
  if (!from->passed() || !to->passed()) return remember(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->time() - from->time()).count();
  return cudaSuccess;
}
