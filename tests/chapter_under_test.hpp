// SPDX-License-Identifier: MIT
// A chapter's trainer, whichever it is: tests are compiled once for all of them, and linked with
// chapter_under_test.cpp, which is compiled against a chapter's folder.
#pragma once
#include "common.hpp"

namespace zero::test {
/// What tests need of a trainer.
struct AnyTrainer {
  virtual ~AnyTrainer() = default;
  virtual StepResult step(const Data& data, int number) = 0;
  virtual AdamState adam_state(int l) const = 0;
  virtual void synchronise() = 0;
};

extern const Card& chapter;
/// All that it is given must outlive it.
std::unique_ptr<AnyTrainer> make_trainer(const Options& options, Device& device,
                                         const Layout& layout, Communicator& comm);
}  // namespace zero::test
