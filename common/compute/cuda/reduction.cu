// SPDX-License-Identifier: MIT
#include "compute/cuda/launch.cuh"

namespace zero::cuda {
namespace {
/// An operand: the mean of all ranks' elements, added in rank order.
template <class T> struct MeanOfRanks {
  using Element = T;
  static constexpr bool written = false;

  const T* own;
  const T* received;  // the other ranks' parts, `part` elements each
  std::int64_t part;
  int rank;
  int ranks;

  __device__ const T* of(int r) const {
    return r == rank ? own : received + (r < rank ? r : r - 1) * part;
  }
};

/// Every part of `received` is aligned when the first one is and their size is whole packs.
template <int width, class T> bool aligned(const MeanOfRanks<T>& x) {
  if (!has_packs<width>(x.own)) return false;
  return x.ranks == 1 || (has_packs<width>(x.received) && x.part % width == 0);
}

template <int width, class T>
__device__ Pack<float, width> load(const MeanOfRanks<T>& x, std::int64_t i) {
  Pack<float, width> sum{};
  for (int r = 0; r < x.ranks; ++r) {
    const Pack<T, width> next = load_pack<width>(x.of(r) + i);
    for (int k = 0; k < width; ++k) {
      sum.at[k] = r == 0 ? widen(next.at[k]) : sum.at[k] + widen(next.at[k]);
    }
  }
  for (int k = 0; k < width; ++k) sum.at[k] /= static_cast<float>(x.ranks);
  return sum;
}
}  // namespace

void CudaKernels::ordered_mean(View own, int rank, View received, View shard, Write write) {
  with_type(shard.dtype, [&]<class T>(T) {
    const int ranks = static_cast<int>(received.size / shard.size) + 1;
    const MeanOfRanks<T> mean{elements<T>(own), elements<T>(received), shard.size, rank, ranks};
    store_each(shard.size, mean, elements<T>(shard), write);
  });
}
}  // namespace zero::cuda
