// SPDX-License-Identifier: MIT
// Helpers of many tests: a device, dtypes and cards to loop over, a view's elements, a call that
// must be refused, an observer of a stream, a stream whose tasks start late.
#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <concepts>

#include "01_adam/card.hpp"
#include "02_distributed_adam/card.hpp"
#include "03_mixed_precision/card.hpp"
#include "04_zero1/card.hpp"
#include "05_zero2/card.hpp"
#include "06_zero3/card.hpp"
#include "07_offload/card.hpp"
#include "08_infinity/card.hpp"
#include "memory/error.hpp"
#include "memory/tensor.hpp"
#include "train/data.hpp"
#include "train/mlp.hpp"
#include "train/step.hpp"

namespace zero::test {
/// The CPU device that tests share, and its host.
inline Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu();
  return *device;
}
inline Device& host() { return cpu().host(); }

inline constexpr Dtype dtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};

/// Half the distance from 1 to the dtype's next number: the largest relative error of a rounding.
constexpr double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::fp32 ? 0x1p-24 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
}

inline float element(ConstView view, std::int64_t i) {
  return with_type(view.dtype, [&]<class T>(T) { return widen(view.as<T>()[i]); });
}

/// Sets element i to value(i), rounded to the view's dtype. The view may be on any device.
inline void fill(View view, std::invocable<std::int64_t> auto value) {
  with_type(view.dtype, [&]<class T>(T) {
    std::vector<T> values(view.size);
    for (std::int64_t i = 0; i < view.size; ++i) values[i] = narrow<T>(value(i));
    view.device->copy(view.data, values.data(), view.bytes());
  });
}
inline void fill(View view, float value) {
  fill(view, [=](std::int64_t) { return value; });
}

/// All elements as fp32. The view may be on any device.
inline std::vector<float> values(ConstView view) {
  const OnHost host(view);
  std::vector<float> all;
  with_type(view.dtype, [&]<class T>(T) {
    for (const T x : host.as<T>()) all.push_back(widen(x));
  });
  return all;
}

inline float rounded(Dtype dtype, float x) {
  return with_type(dtype, [&]<class T>(T) { return widen(narrow<T>(x)); });
}

/// The bits of each element as fp32: compared as bits, -0 differs from 0, and a NaN equals itself.
inline std::vector<std::uint32_t> bits(ConstView view) {
  std::vector<std::uint32_t> all;
  for (const float x : values(view)) all.push_back(std::bit_cast<std::uint32_t>(x));
  return all;
}

/// Checks that f() throws an Error with this code, and that its text is one line and contains each
/// of `words`.
inline void check_refused(ExitCode code, const std::vector<std::string>& words, auto f) {
  try {
    f();
    FAIL_CHECK("accepted");
  } catch (const Error& error) {
    const std::string what = error.what();
    INFO(what);
    CHECK(error.code == code);
    CHECK(what.find('\n') == what.npos);
    for (const std::string& word : words) CHECK_MESSAGE(what.find(word) != what.npos, word);
  }
}

struct Worker : Stream {  // runs its tasks on a thread of its own
  explicit Worker(const char* name) : Stream(name, cpu(), Mode::asynchronous) {}
};

/// Calls `seen` when a task, a part of a task, or a wait begins and ends on a stream that has the
/// name `stream` and is made while this object lives. The object must outlive the stream.
struct OneStreamObserver : DeviceObserver, StreamObserver {
  using Seen = std::function<void(const Work& work, bool begins)>;

  OneStreamObserver(const char* stream, Device& device, Seen seen)
      : stream(stream), seen(std::move(seen)), device(device) {
    device.observe(this);
  }
  ~OneStreamObserver() override { device.observe(nullptr); }
  StreamObserver* stream_observer(const char* name) override {
    return name == stream ? this : nullptr;
  }
  void on_booked(const Device&, Kind, std::int64_t, const ConstView*) override {}
  void on_work(const Work& work, Kernels*, bool begins) override { seen(work, begins); }

  const std::string stream;
  const Seen seen;
  Device& device;
};

/// Delays each task, but no wait, on streams of the name `late`, by `time`. If a program forgot a
/// wait for such a task, its results then have other bits.
struct Delay : OneStreamObserver {
  Delay(const char* late, std::chrono::microseconds time, Device& device = cpu())
      : OneStreamObserver(late, device, [=](const Work& work, bool begins) {
          if (begins && work.type != Work::Type::wait) std::this_thread::sleep_for(time);
        }) {}
};

inline constexpr const Card* all_cards[] = {
    &cards::adam,  &cards::distributed_adam, &cards::mixed_precision, &cards::zero1, &cards::zero2,
    &cards::zero3, &cards::offload,          &cards::infinity};
inline const Card& card(const std::string& number) { return *all_cards[std::stoi(number) - 1]; }
}  // namespace zero::test
