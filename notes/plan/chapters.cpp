// SPDX-License-Identifier: MIT
// The one place that knows all trainers. In each program a trainer is called zero::Trainer; here
// each gets a name of its own, in one translation unit: of several definitions of the inline
// variable zero::Trainer::chapter a linker would keep one, for all of them.
#include "train/chapter.hpp"

#define Trainer Trainer_02
#include "02_distributed_adam/trainer.hpp"
#undef Trainer
#define Trainer Trainer_03
#include "03_mixed_precision/trainer.hpp"
#undef Trainer
#define Trainer Trainer_04
#include "04_zero1/trainer.hpp"
#undef Trainer
#define Trainer Trainer_05
#include "05_zero2/trainer.hpp"
#undef Trainer
#define Trainer Trainer_06
#include "06_zero3/trainer.hpp"
#undef Trainer
#define Trainer Trainer_07
#include "07_offload/trainer.hpp"
#undef Trainer

namespace zero {
namespace {
template <class... Trainers> constexpr const Chapter* cards[] = {&Trainers::chapter...};
}  // namespace

std::span<const Chapter* const> chapters_on_ranks() {
  return cards<Trainer_02, Trainer_03, Trainer_04, Trainer_05, Trainer_06, Trainer_07>;
}
}  // namespace zero
