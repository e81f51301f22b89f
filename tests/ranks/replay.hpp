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

class Replay {
 public:
  Replay(const Options& options, int ranks, Family family);
  Outcome run(const MakeData& make);

 private:
  /// As stored: every element has been rounded to options.dtype.
  using Values = std::vector<float>;

  float rounded(float x) const;
  /// The real elements of a tensor of all layers, widened; waits for the stream.
  Values values_of(const Tensor& tensor);
  /// Rank r's gradients of one micro-batch, all layers, and its loss added to loss_[r].
  Values micro_batch(const Batch& batch, int rank);
  Values mean_over_ranks(const std::vector<Values>& of_rank) const;
  void add(Values& to, const Values& what) const;
  Values gradients_once_a_step(const std::vector<std::unique_ptr<Data>>& data, int step);
  Values gradients_every_micro_batch(const std::vector<std::unique_ptr<Data>>& data, int step);
  /// Squares of what each rank owns, in that rank's order, then added over the ranks.
  Totals totals(const Values& grads) const;
  void update(const Values& grads, float factor);
  Verdict step(const std::vector<std::unique_ptr<Data>>& data, int step);

  Options options_;
  int ranks_;
  Family family_;
  Stream stream_{"replay"};
  Mlp model_;
  Layout layout_;
  Adam adam_;
  LossScale loss_scale_;
  Tensor params_, grads_, master_, momentum_, variance_;
  std::vector<Sums> sums_;
};

}  // namespace zero::test
