// SPDX-License-Identifier: MIT
// The three storage types. Arithmetic is fp32 or fp64: the 16-bit types are only stored.
#pragma once
#include <bit>
#include <cfloat>
#include <cstdint>
#include <stdexcept>

#include "memory/names.hpp"

// Marks functions that the host and a GPU both call, so that arithmetic is written once.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

namespace zero {
static_assert(FLT_EVAL_METHOD == 0, "an fp32 operation is rounded to fp32, or bits would differ");

enum class Dtype { fp32, bf16, fp16 };
template <> inline constexpr std::array names_of<Dtype>{"fp32", "bf16", "fp16"};

/// Whether a result replaces the old value of its destination, or is added to it.
enum class Write { overwrite, add };

/// The upper half of an fp32: the same range, so no loss scale is needed, and 8 bits of precision.
struct Bf16 {
  std::uint16_t bits;
};

/// IEEE binary16: 11 bits of precision, largest value 65504. Its small range needs a loss scale.
struct Fp16 {
  std::uint16_t bits;
};

HOST_DEVICE inline float widen(float x) { return x; }

HOST_DEVICE inline float widen(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

HOST_DEVICE inline float widen(Fp16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t magnitude = std::uint32_t{x.bits & 0x7fffu} << 13;
  // Multiplying by 2^112 changes the exponent's bias from 15 to 127, also for subnormal numbers.
  float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  if (value >= 65536.0f) value = std::bit_cast<float>(magnitude | 0x7f800000u);  // infinity, NaN
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

/// Rounds to the nearest value that T can store, ties to even. NaN stays NaN.
template <class T> HOST_DEVICE T narrow(float x);

template <> HOST_DEVICE inline float narrow<float>(float x) { return x; }

template <> HOST_DEVICE inline Bf16 narrow<Bf16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>(x == x ? rounded : quiet_nan)};
}

template <> HOST_DEVICE inline Fp16 narrow<Fp16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  // Normal: rebias the exponent and round off 13 bits; a carry turns 65520 and above into infinity.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal: adding 1/2 rounds the value to units of 2^-24, which are then the low bits.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<std::uint16_t>(half | sign)};
}

/// place = round(x); with Write::add round(place + round(x)), as if x had been stored, then added.
template <class T> HOST_DEVICE inline void store(T& place, float x, Write write) {
  const T rounded = narrow<T>(x);
  place = write == Write::add ? narrow<T>(widen(place) + widen(rounded)) : rounded;
}

/// Calls `visitor` with a value of the C++ type that stores `dtype`.
template <class Visitor> decltype(auto) with_type(Dtype dtype, Visitor&& visitor) {
  if (dtype == Dtype::bf16) return visitor(Bf16{});
  if (dtype == Dtype::fp16) return visitor(Fp16{});
  if (dtype == Dtype::fp32) return visitor(float{});
  throw std::logic_error("with_type: no such dtype");
}

constexpr std::int64_t bytes_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }
}  // namespace zero
