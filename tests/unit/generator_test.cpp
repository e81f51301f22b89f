// SPDX-License-Identifier: MIT
// The generator against notes/generator.md and against splitmix64's published numbers.
#include "compute/generator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace zero {
namespace {
using enum RandomStream;
constexpr RandomStream streams[] = {weights, inputs, positions, codes, teacher_in, teacher_out};
constexpr std::uint64_t one = 1;
}  // namespace

TEST_CASE("mix is splitmix64: its state advances by the golden gamma") {
  // The first five numbers of the generator seeded with 1234567, as published with it.
  constexpr std::uint64_t published[] = {6457827717110365317u, 3203168211198807973u,
                                         9817491932198370423u, 4593380528125082431u,
                                         16408922859458223821u};
  std::uint64_t state = 1234567;
  for (const std::uint64_t expected : published) {
    CHECK(mix(state) == expected);
    state += 0x9e3779b97f4a7c15;
  }
}

TEST_CASE("seed, stream and index make the key and the state as the note says") {
  for (const std::uint64_t seed : {one - 1, one, ~(one - 1)}) {
    for (std::uint64_t stream = 0; stream < std::size(streams); ++stream) {
      CHECK(static_cast<std::uint64_t>(streams[stream]) == stream);
      const std::uint64_t key = mix(mix(seed) ^ stream);
      const Generator random(seed, streams[stream]);
      for (const std::uint64_t index : {one - 1, one, one << 40}) {
        CHECK(random.bits(index) == mix(key + index * 0x9e3779b97f4a7c15));
      }
    }
  }
  // Made once with Python's integers from the note: what is above could share a mistake with the
  // code.
  CHECK(Generator(1, RandomStream::weights).bits(0) == 0xb18a02f46d8d86c3);
  CHECK(Generator(7, RandomStream::codes).bits(12345) == 0xa9f58ef9886f3ce3);
}

TEST_CASE("uniform numbers are multiples of 2^-23 in [-1, 1): the top 24 bits") {
  const Generator random(3, RandomStream::weights);
  float least = 1, largest = -1;
  for (std::uint64_t i = 0; i < 1000000; ++i) {
    const float x = random.uniform(i);
    // Exact in double as in fp32, so a rounding anywhere would show.
    REQUIRE(x * 0x1p23 == static_cast<double>(random.bits(i) >> 40) - 0x1p23);
    least = std::min(least, x);
    largest = std::max(largest, x);
  }
  // A million numbers miss the last 10^-5 of the interval with a chance of e^-5 at most; the
  // seed is fixed, so this passes or fails for ever.
  CHECK(least >= -1);
  CHECK(least < -1 + 1e-5);
  CHECK(largest < 1);
  CHECK(largest > 1 - 1e-5);
}

TEST_CASE("a million uniform numbers have the mean and the variance of such") {
  constexpr int count = 1000000;
  for (const RandomStream stream : streams) {
    const Generator random(11, stream);
    double sum = 0, squares = 0, neighbours = 0;
    for (int i = 0; i < count; ++i) {
      const double x = random.uniform(i);
      sum += x;
      squares += x * x;
      neighbours += x * random.uniform(i + 1);
    }
    // Of uniform numbers in [-1, 1): mean 0 with variance 1/3 each, squares 1/3 with variance
    // 1/5 - 1/9 = 4/45, products of neighbours 0 with variance 1/9. Means of 10^6 have standard
    // deviations 10^-3 of the roots of those; five of them are exceeded once in 1.7 million.
    CHECK(std::abs(sum / count) < 5e-3 * std::sqrt(1.0 / 3));
    CHECK(std::abs(squares / count - 1.0 / 3) < 5e-3 * std::sqrt(4.0 / 45));
    CHECK(std::abs(neighbours / count) < 5e-3 * std::sqrt(1.0 / 9));
  }
}

TEST_CASE("other seeds, streams and indices give other numbers") {
  std::set<std::uint64_t> seen;
  std::size_t made = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const RandomStream stream : streams) {
      const Generator random(seed, stream);
      for (std::uint64_t index = 0; index < 100; ++index, ++made) seen.insert(random.bits(index));
    }
  }
  // 30 000 of 2^64: two equal ones would be a chance of 2 * 10^-11.
  CHECK(seen.size() == made);
}
}  // namespace zero
