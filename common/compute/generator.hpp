// SPDX-License-Identifier: MIT
// Every random number is a function of (seed, stream, index), so a rank can make any part of the
// weights or of the data without making the rest. notes/generator.md is the specification.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// What random numbers are for: weights or samples. 0 .. 5 never change: they are part of the key.
enum class RandomStream { weights, inputs, positions, codes, teacher_in, teacher_out };

constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15;

/// One step of the generator splitmix64: adds golden_gamma, then scrambles the bits.
HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t z) {
  z += golden_gamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Returns the sum, mod 2^64, of mix(mix(i) ^ element i's bits in fp32) over the view's elements
/// without padding; the first has i = `number`. So the parts' digests add up to that of the whole.
/// All work on the elements must be done. Throws Error (resources) if a disk cannot be read.
std::uint64_t digest(ConstView elements, std::int64_t number);

/// Random numbers of one (seed, stream). index: of an element or sample, in the whole model or run.
class Generator {
 public:
  Generator(std::uint64_t seed, RandomStream stream)
      : key_(mix(mix(seed) ^ static_cast<std::uint64_t>(stream))) {}

  HOST_DEVICE std::uint64_t bits(std::uint64_t index) const {
    return mix(key_ + index * golden_gamma);
  }

  /// Returns a multiple of 2^-23 in [-1, 1): exact in fp32, so the same in every language.
  HOST_DEVICE float uniform(std::uint64_t index) const {
    const auto top = static_cast<std::int32_t>(bits(index) >> 40);
    return static_cast<float>(top - (1 << 23)) * 0x1p-23f;
  }

 private:
  std::uint64_t key_;
};
}  // namespace zero
