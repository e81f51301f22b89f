// SPDX-License-Identifier: MIT
// The same memory and the same kernels on the CPU and on a GPU, side by side.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compute/kernels.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {
inline constexpr std::int64_t margin = 16;
inline constexpr float poison = 12345;
inline constexpr Write writes[] = {Write::over, Write::add};

/// Another one in every run; a failure prints it.
inline std::uint64_t fresh_seed() {
  static const std::uint64_t seed = std::random_device()();
  return seed;
}

/// Numbers in [-1, 1), another sequence for every object.
class Random {
 public:
  float operator()() { return generator_.uniform(next_++); }

 private:
  static inline std::uint64_t made_ = 0;
  Generator generator_{fresh_seed() + made_++, RandomStream::inputs};
  std::uint64_t next_ = 0;
};

inline Tensor on_gpu(std::int64_t size) {
  return Tensor(Device::cuda, Kind::data, Dtype::fp32, size);
}

/// The same elements in the memory of both, with a margin around them.
class Twin {
 public:
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset, auto&& value)
      : size_(size),
        offset_(margin + offset),
        cpu_(Device::cpu, Kind::data, dtype, size + 2 * margin + offset),
        gpu_(Device::cuda, Kind::data, dtype, cpu_.size()) {
    fill(cpu_.view(), [](std::int64_t) { return poison; });
    fill(on(Device::cpu), [&](std::int64_t) { return value(); });
    memory_of(Device::cuda).copy(gpu_.view().data, cpu_.view().data, cpu_.view().bytes());
  }
  Twin(Dtype dtype, std::int64_t size, std::int64_t offset)
      : Twin(dtype, size, offset, [] { return poison; }) {}

  View on(Device device) const {
    return (device == Device::cpu ? cpu_ : gpu_).view().part(offset_, size_);
  }
  std::vector<float> on_cpu() const { return values(on(Device::cpu)); }

  void check_same_bits(const char* what) const {
    INFO(std::string(what), " of ", size_, " elements from ", offset_);
    CHECK(bits(cpu_.view()) == bits(gpu_.view()));
  }
  /// |gpu - cpu| <= bound(i) for every element, and equal margins.
  void check_near(const char* what, auto bound) const {
    INFO(std::string(what), " of ", size_, " elements from ", offset_);
    const std::vector<float> a = values(cpu_.view()), b = values(gpu_.view());
    for (std::int64_t i = 0; i < std::ssize(a); ++i) {
      const bool inside = i >= offset_ && i < offset_ + size_;
      const double most = inside ? bound(i - offset_) : 0.0;
      if (std::abs(static_cast<double>(a[i]) - b[i]) <= most) continue;
      FAIL_CHECK("element ", i - offset_, ": ", b[i], ", the CPU has ", a[i], ", bound ", most);
      return;
    }
  }

 private:
  std::int64_t size_, offset_;
  Tensor cpu_, gpu_;
};

/// A device's kernels and its Sums.
struct Side {
  explicit Side(Device where) : device(where), kernels(make_kernels(where)), sums(where) {
    kernels->clear(sums);
  }
  View operator()(const Twin& twin) const { return twin.on(device); }
  Kernels* operator->() const { return kernels.get(); }

  Device device;
  std::unique_ptr<Kernels> kernels;
  Sums sums;
};

struct Both {
  Side cpu{Device::cpu}, gpu{Device::cuda};

  /// Does the work on each, waits for it, and fetches the sums.
  void run(auto work) {
    for (Side* side : {&cpu, &gpu}) {
      work(*side);
      (*side)->fetch(side->sums);
    }
  }
};

/// For every dtype, size and offset.
void everywhere(auto test) {
  INFO("seed ", fresh_seed());
  for (const Dtype dtype : dtypes) {
    for (const std::int64_t size : {1, 7, 8, 9, 255, 256, 1000, 4099}) {
      for (const std::int64_t offset : {0, 1, 3}) {
        INFO("dtype ", std::string(name_of(dtype)));
        test(dtype, size, offset);
      }
    }
  }
}

/// Bytes, where a program has 32 MiB: so few that a weight needs the room several times over, and a
/// row of 1300 more than all of it.
constexpr std::int64_t product_room = 2400;

/// For every dtype and shape of a layer, with a bias and without.
void every_layer(auto test) {
  constexpr LinearShape shapes[] = {{1, 1, 1, true},    {5, 7, 9, true},     {17, 24, 8, true},
                                    {33, 8, 64, true},  {300, 40, 72, true}, {3, 1300, 5, true},
                                    {4, 200, 20, true}, {8500, 3, 17, true}};
  for (const Dtype dtype : dtypes) {
    for (LinearShape s : shapes) {
      INFO("seed ", fresh_seed(), " dtype ", std::string(name_of(dtype)), " batch ", s.batch);
      for (const bool bias : {true, false}) {
        s.bias = bias;
        test(dtype, s);
      }
    }
  }
}

/// One layer with everything that its three products read and write; 5 elements of padding.
struct LayerTwin {
  LayerTwin(Dtype dtype, const LinearShape& s, auto&& value)
      : shape(s),
        used(s.weights() + (s.bias ? s.outputs : 0)),
        x(dtype, s.batch * s.inputs, 0, value),
        params(dtype, used + 5, 0, value),
        y(dtype, s.batch * s.outputs, 0),
        dy(dtype, s.batch * s.outputs, 0, value),
        dx(dtype, s.batch * s.inputs, 0),
        grads(dtype, used + 5, 0, value) {}

  void run(bool relu, Write write) const {
    Both both;
    both.run([&](Side& on) {
      on->reserve_products(product_room);
      View padded = on(grads);
      padded.used = used;
      on->linear_forward(shape, on(x), on(params), on(y), relu);
      on->linear_backward_params(shape, on(dy), on(x), padded, write);
      on->linear_backward_input(shape, on(dy), on(params), on(x), on(dx), relu);
      wait_for(on->record());
    });
  }

  LinearShape shape;
  std::int64_t used;
  Twin x, params, y, dy, dx, grads;
};
}  // namespace zero::test
