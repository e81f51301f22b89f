// SPDX-License-Identifier: MIT
// A fingerprint of elements that does not depend on how they are cut.
#pragma once
#include "memory/tensor.hpp"

namespace zero {
/// The sum, mod 2^64, of mix(mix(number) ^ bits in fp32) over the view's elements without padding,
/// with consecutive numbers from `number` on. So digests of parts add up to the digest of the
/// whole. All work on the elements must be done. Throws Error (resources) when a disk cannot be
/// read.
std::uint64_t digest(ConstView elements, std::int64_t number);
}  // namespace zero
