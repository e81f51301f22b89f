// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <vector>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
void CpuKernels::copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, bytes);
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
    for (std::int64_t start = 0; start < shard.size; start += block) {
      const std::int64_t count = std::min(block, shard.size - start);
      for (std::size_t r = 0; r < sources.size(); ++r) {
        const Store add{r == 0 ? Write::over : Write::add};
        each(count, add, In<T>{sources[r] + start}, InOut<float>{sum});
      }
      each(count, Divide{static_cast<float>(sources.size())}, InOut<float>{sum});
      each(count, Store{write}, In<float>{sum}, InOut<T>{shard.as<T>().data() + start});
    }
  });
}
}  // namespace zero
