// SPDX-License-Identifier: MIT
#include "compute/generator.hpp"

#include <algorithm>

namespace zero {
std::uint64_t digest(ConstView elements, std::int64_t number) {
  constexpr std::int64_t most = 1 << 16;  // elements in OnHost's copy of a part on a GPU or disk
  std::uint64_t sum = 0;
  for (std::int64_t at = 0; at < elements.used; at += most) {
    const OnHost host(elements.part(at, std::min(most, elements.used - at)));
    with_type(elements.dtype, [&]<class T>(T) {
      auto index = static_cast<std::uint64_t>(number + at);
      for (const T element : host.as<T>()) {
        sum += mix(mix(index++) ^ std::bit_cast<std::uint32_t>(widen(element)));
      }
    });
  }
  return sum;
}
}  // namespace zero
