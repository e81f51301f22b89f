// SPDX-License-Identifier: MIT
// A decoder like Llama: transformers' LlamaForCausalLM, with its head not tied to the embedding.
#pragma once
#include "train/model.hpp"

namespace zero {
/// Grouped-query attention: all heads of queries in a group use the same head of keys and values.
struct LlamaShape {
  std::int64_t blocks, sequences, tokens, vocabulary, width, hidden;
  std::int64_t groups, queries, size;  // queries: heads per group; size: numbers per head

  std::int64_t rows() const { return sequences * tokens; }
  /// Numbers per token: of its keys, as many as of its values; and of queries, keys and values.
  std::int64_t keys_width() const { return groups * size; }
  std::int64_t heads_width() const { return width + 2 * keys_width(); }
};

Architecture llama_architecture(const Options& options);

/// Layer 0 is the embedding, 1 .. L are the blocks, L + 1 is the last norm and the head.
class Llama : public Network {
 public:
  Llama(const Options& options, Stream& stream);

  void load(const Batch& batch) override;
  void forward(int l, ConstView params) override;
  void loss(Sums& sums, float scale) override;
  void backward(int l, ConstView params, View grads, Write write) override;

 private:
  template <class Elements> struct BlockOf;  // the tensors of a block's layer, or their gradients
  using Block = BlockOf<ConstView>;
  /// A block's activations for backward: a row per token, or by group (sequences, groups, ...).
  struct Kept {
    View normed;
    View queries, keys, values, shares;  // by group; shares: the attention's probabilities
    View mixed, middle, normed_middle, pair, product;
  };

  bool is_block(int l) const { return 0 < l && l <= shape_.blocks; }
  const Kept& kept(int l) const { return kept_[(l - 1) % kept_.size()]; }
  void multiply(Kernels& on, ConstView x, ConstView weight, View y) const;
  void multiply_backward(Kernels& on, View dy, ConstView weight, View x, View grads,
                         Write write) const;
  void form(Kernels& on, const Block& params, ConstView x, const Kept& k) const;
  void block_backward(Kernels& on, const Block& params, ConstView x, const Kept& k,
                      const BlockOf<View>& grads, Write write) const;
  HeadsShape heads(std::int64_t of_group) const;
  Matrix columns(std::int64_t first) const;
  Matrices matrices(View all, std::int64_t rows, std::int64_t columns, std::int64_t token = 0,
                    std::int64_t column = 0) const;
  void for_each_block(auto use) const;
  void attend(Kernels& on, const Kept& k) const;
  void attend_backward(Kernels& on, const Kept& k) const;

  Stream& stream_;
  const LlamaShape shape_;
  const float scale_;  // of the attention's scores: 1 / sqrt(size)
  const bool recompute_;
  Scratch activations_;
  Borrowed live_;
  // Parts of activations_, with a row per token, except where it says "by group".
  std::vector<View> inputs_;  // [l]: inputs of layer l + 1
  std::vector<Kept> kept_;  // by block; with --recompute only one, for the present block
  View delta_;  // the gradient of a block's output; backward turns it into that of the input
  View normed_, logits_, logits_delta_;  // of the head
  View heads_;  // queries, keys and values of a block, or their gradients
  View mixed_;  // by group; in the memory of heads_, as they are never needed at the same time
  View queries_delta_, keys_delta_, values_delta_, shares_delta_;  // gradients, by group
  Tensor tokens_, targets_;  // (sequences, tokens), as numbers in fp32
  Tensor turns_;  // (tokens, size): of the rotary embedding, half cosines, half sines
};
}  // namespace zero
