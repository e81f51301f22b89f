// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <vector>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {

void CpuKernels::copy(View from, View to) {
  std::memcpy(to.data, from.data, from.bytes());
}

void CpuKernels::copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, bytes);
}

void CpuKernels::clear(Sums& sums) {
  sums.totals.loss = sums.totals.squares = 0;
}

void CpuKernels::divide(View values, int divisor) {
  with_type(values.dtype, [&]<class T>(T) {
    const auto by = static_cast<float>(divisor);
    for (T& x : values.as<T>()) x = narrow<T>(widen(x) / by);
  });
}

/// Eight lanes: element i in lane i mod 8.
void CpuKernels::squared_norm(View values, Sums& sums) {
  with_type(values.dtype, [&]<class T>(T) {
    constexpr std::int64_t lanes = 8;
    double partial[lanes] = {};
    const T* x = values.as<T>().data();
    const std::int64_t whole = values.size / lanes * lanes;
    for (std::int64_t i = 0; i < whole; i += lanes) {
      for (std::int64_t k = 0; k < lanes; ++k) {
        const double wide = widen(x[i + k]);
        partial[k] += wide * wide;
      }
    }
    for (std::int64_t i = whole; i < values.size; ++i) {
      const double wide = widen(x[i]);
      partial[i - whole] += wide * wide;
    }
    for (const double lane : partial) sums.totals.squares += lane;
  });
}

void CpuKernels::ordered_mean(View own, int rank, View received, View shard, Write write) {
  with_type(shard.dtype, [&]<class T>(T) {
    std::vector<const T*> sources;
    for (std::int64_t at = 0; at < received.size; at += shard.size) {
      sources.push_back(received.as<T>().data() + at);
    }
    sources.insert(sources.begin() + rank, own.as<T>().data());
    constexpr std::int64_t block = 1024;  // a block of sums stays in the first-level cache
    float sum[block];
    const auto ranks = static_cast<float>(sources.size());
    for (std::int64_t start = 0; start < shard.size; start += block) {
      const std::int64_t count = std::min(block, shard.size - start);
      for (std::int64_t i = 0; i < count; ++i) sum[i] = widen(sources[0][start + i]);
      for (std::size_t r = 1; r < sources.size(); ++r) {
        for (std::int64_t i = 0; i < count; ++i) sum[i] += widen(sources[r][start + i]);
      }
      T* out = shard.as<T>().data() + start;
      for (std::int64_t i = 0; i < count; ++i) store(out[i], sum[i] / ranks, write);
    }
  });
}

}  // namespace zero
