// SPDX-License-Identifier: MIT
// Reading and writing elements of a view of any storage type, for tests.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "tensor.hpp"

namespace zero::test {

inline constexpr Dtype dtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};

/// Half the distance from 1 to the next larger number: the largest relative error of one rounding.
constexpr double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::fp32 ? 0x1p-24 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
}

inline float element(View view, std::int64_t i) {
  return with_type(view.dtype, [&]<class T>(T) { return widen(view.as<T>()[i]); });
}

/// Element i becomes value(i), rounded.
inline void fill(View view, auto value) {
  with_type(view.dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < view.size; ++i) {
      view.as<T>()[i] = narrow<T>(static_cast<float>(value(i)));
    }
  });
}

/// x rounded to the storage type.
inline float rounded(Dtype dtype, float x) {
  return with_type(dtype, [&]<class T>(T) { return widen(narrow<T>(x)); });
}

/// The elements as bits, so that comparing them tells -0 from 0 and compares NaNs.
inline std::vector<std::uint32_t> bits(View view) {
  std::vector<std::uint32_t> all;
  for (std::int64_t i = 0; i < view.size; ++i) {
    all.push_back(std::bit_cast<std::uint32_t>(element(view, i)));
  }
  return all;
}

}  // namespace zero::test
