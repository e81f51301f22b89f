// SPDX-License-Identifier: MIT
#include "reduction.hpp"

#include <cstring>

#include "error.hpp"

namespace zero {

void clear(Stream& stream, Sums& sums) {
  stream.run([&sums] { sums = {}; });
}

void divide(Stream& stream, View values, int divisor) {
  if (divisor == 1) return;
  stream.run([=] {
    with_type(values.dtype, [&]<class T>(T) {
      const auto by = static_cast<float>(divisor);
      for (T& x : values.as<T>()) x = narrow<T>(widen(x) / by);
    });
  });
}

void squared_norm(Stream& stream, View values, Sums& sums) {
  stream.run([=, &sums] {
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
      for (const double lane : partial) sums.squares += lane;
    });
  });
}

void copy(Stream& stream, View from, View to) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both sides are of one kind");
  stream.run([=] { std::memcpy(to.data, from.data, from.bytes()); });
}

}  // namespace zero
