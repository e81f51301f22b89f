// SPDX-License-Identifier: MIT
#include "compute/bus.hpp"

#include "compute/modelled_time.hpp"
#include "memory/error.hpp"

namespace zero {
void copy(Stream& stream, View from, View to) {
  expect(from.size == to.size && from.dtype == to.dtype, "copy: both sides are of one kind");
  Kernels& on = stream.kernels();
  if (place_of(from.device) == place_of(to.device)) {
    return stream.run(work_on("copy", to, Work::Sort::copy), [=, &on] { on.copy(from, to); });
  }
  const Direction direction = direction_to(place_of(to.device));
  stream.run(work_on(name_of(direction), to, Work::Sort::transfer), [=, &on] {
    if (bus().gb_per_s > 0) wait_for(on.record());  // what a GPU copies, it may have to make yet
    const auto arrival = std::chrono::steady_clock::now() + bus().time(to.bytes());
    on.copy(from, to);
    bus().bytes[static_cast<int>(direction)] += to.bytes();
    if (bus().gb_per_s == 0) return;
    wait_for(on.record());
    Stream::part({"the bus", Work::Sort::wait}, [=] { wait_in_task_until(arrival); });
  });
}
}  // namespace zero
