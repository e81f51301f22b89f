// SPDX-License-Identifier: MIT
// One process that plays all ranks of a run, without a communicator, without shards and without
// padding: what every chapter must equal to the last bit. It uses the same model and the same Adam,
// and spells out every rounding of the reduction.
#pragma once
#include <vector>

#include "tests/ranks/ranks.hpp"

namespace zero::test {
/// When the ranks' gradients are added: once a step, or for every micro-batch.
enum class Family { once_a_step, every_micro_batch };

inline Family family_of(const Chapter& chapter) {
  return family(chapter) == "once a step" ? Family::once_a_step : Family::every_micro_batch;
}

class Replay {
 public:
  /// Of a run on as many ranks as the test has.
  Replay(const Options& options, Family family);
  Outcome run(const MakeData& make);

 private:
  /// As stored: every element has been rounded to options.dtype.
  using Values = std::vector<float>;

  float rounded(float x) const;
  /// The real elements of a tensor of all layers, widened; waits for the stream.
  Values values_of(const Tensor& tensor);
  /// Rank r's gradients of one micro-batch, all layers, and its loss added to sums_[r].
  Values micro_batch(int step, int micro, int rank);
  Values mean_over_ranks(const std::vector<Values>& of_rank) const;
  void add(Values& to, const Values& what) const;
  Values gradients_once_a_step(int step);
  Values gradients_every_micro_batch(int step);
  /// Squares of what each rank owns, in that rank's order, then added over the ranks.
  Totals totals(const Values& grads) const;
  void update(const Values& grads, float factor);
  Verdict step(int step);

  const Options options_;
  const int ranks_;
  const Family family_;
  Stream stream_;
  Mlp model_;
  const Layout layout_;
  Adam adam_;
  LossScale loss_scale_;
  Tensor params_, grads_, master_, momentum_, variance_;
  std::vector<Sums> sums_;
  std::vector<std::unique_ptr<Data>> data_;  // of each rank
};

/// Every verdict and every number of the state, to the last bit.
void check_same_run(const Outcome& ours, const Outcome& expected);
void check_same_bits(const std::vector<float>& ours, const std::vector<float>& expected,
                     const char* what);
}  // namespace zero::test
