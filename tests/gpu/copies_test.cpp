// SPDX-License-Identifier: MIT
// Between a GPU and its host: what is page-locked is copied beside other work.
#include <doctest/doctest.h>

#include "tests/gpu/twins.hpp"

namespace zero::test {
TEST_CASE("copies: those of page-locked memory are not waited for, those of ordinary arrive too") {
  constexpr std::int64_t size = 1 << 25, bytes = 1 << 20;
  const Buffer page_locked(Device::cuda, Kind::communication, bytes, true, Memory::staging);
  const Buffer ordinary(Device::host, Kind::communication, bytes, true);
  const Tensor values = on_gpu(size), back = on_gpu(size);
  const auto on = make_kernels(Device::cuda);
  on->initialise(values.view(), Generator(fresh_seed(), RandomStream::inputs), 0, size, 1);
  for (int i = 0; i < 10; ++i) on->divide(values.view(), 3);
  const Mark divided = on->record();
  on->copy_bytes(page_locked.data(), values.view().data, bytes);
  on->copy_bytes(back.view().data, page_locked.data(), bytes);
  CHECK(!divided->passed());
  const View elsewhere = back.view().part(size / 2, bytes / 4);
  on->copy_bytes(ordinary.data(), values.view().data, bytes);
  on->copy_bytes(elsewhere.data, ordinary.data(), bytes);
  wait_for(on->record());
  const auto expected = bits(values.view().part(0, bytes / 4));
  CHECK(bits(back.view().part(0, bytes / 4)) == expected);
  CHECK(bits(elsewhere) == expected);
}
}  // namespace zero::test
