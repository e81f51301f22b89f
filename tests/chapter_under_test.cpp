// SPDX-License-Identifier: MIT
#include "tests/chapter_under_test.hpp"

#include "trainer.hpp"

namespace zero::test {
namespace {
template <class Trainer> struct Adapter : AnyTrainer {
  explicit Adapter(auto&&... arguments) : trainer(arguments...) {}
  Verdict step(const Data& data, int step) override { return trainer.step(data, step); }
  AdamSlice state(int l) const override { return trainer.state(l); }
  void synchronise() override { trainer.synchronise(); }

  Trainer trainer;
};

/// A template, so that only one of the two constructors needs to be there.
template <class Trainer>
std::unique_ptr<AnyTrainer> make(const Options& options, Device device, const Layout& layout,
                                 Communicator& comm) {
  if constexpr (Trainer::chapter.ranks) {
    return std::make_unique<Adapter<Trainer>>(options, device, layout, comm);
  } else {
    return std::make_unique<Adapter<Trainer>>(options, device, layout);
  }
}
}  // namespace

const Chapter& chapter = Trainer::chapter;

std::unique_ptr<AnyTrainer> make_trainer(const Options& options, Device device,
                                         const Layout& layout, Communicator& comm) {
  return make<Trainer>(options, device, layout, comm);
}
}  // namespace zero::test
