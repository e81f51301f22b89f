// SPDX-License-Identifier: MIT
// A Llama: Hugging Face's LlamaForCausalLM, whose head is not tied to (shared with) the embedding.
#pragma once
#include "train/model.hpp"

namespace zero {
/// Grouped-query attention: all heads of queries in a group use the same head of keys and values.
struct LlamaShape {
  std::int64_t blocks, sequences, tokens, vocabulary;  // tokens: of one sequence
  std::int64_t width, hidden;  // elements per token: of a block's input, of SwiGLU
  std::int64_t kv_heads, q_per_kv, head_dim;  // q_per_kv: heads of queries that share one of keys

  std::int64_t rows() const { return sequences * tokens; }
  /// Elements per token: of its keys (its values have as many); of queries, keys and values.
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return width + 2 * kv_width(); }
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
  /// A block's activations for backward: a row per token, or by head of keys (matrix.hpp).
  struct BlockActivations {
    View normed;  // the block's input after the first RMSNorm
    View queries, keys, values, attention_probs;  // by head of keys
    View attention_out, middle;  // middle: o_proj's output plus the block's input
    View normed_middle, gate_up, product;  // product: SwiGLU's output, down_proj's input
  };

  bool is_block(int l) const { return 0 < l && l <= shape_.blocks; }
  const BlockActivations& activations_of(int l) const {
    return block_activations_[(l - 1) % block_activations_.size()];
  }
  void multiply(Kernels& on, ConstView x, ConstView weight, View y) const;
  void multiply_backward(Kernels& on, View dy, ConstView weight, View x, View grads,
                         Write write) const;
  void block_forward(Kernels& on, const Block& params, ConstView x,
                     const BlockActivations& a) const;
  void block_backward(Kernels& on, const Block& params, ConstView x, const BlockActivations& a,
                      const BlockOf<View>& grads, Write write) const;
  HeadsShape heads_shape(std::int64_t heads_per_kv) const;
  Matrix qkv_columns(std::int64_t first) const;
  Matrices matrices(View all, std::int64_t rows, std::int64_t columns, std::int64_t token = 0,
                    std::int64_t column = 0) const;
  void for_each_tile(auto use) const;
  void attention_forward(Kernels& on, const BlockActivations& a) const;
  void attention_backward(Kernels& on, const BlockActivations& a) const;

  Stream& stream_;
  const LlamaShape shape_;
  const float scale_;  // of the attention's scores: 1 / sqrt(head_dim)
  const bool recompute_;
  Scratch activations_;
  Borrowed live_;  // activations_, lent from load to the end of backward
  // Parts of activations_, with a row per token unless the comment says "by head of keys".
  std::vector<View> inputs_;  // [l]: inputs of layer l + 1
  std::vector<BlockActivations> block_activations_;  // by block; with --recompute one for all
  View grad_output_;  // gradient of a block's output; backward replaces it by its input's
  View normed_, logits_, grad_logits_;  // of the head
  View qkv_;  // queries, keys and values of a block, or their gradients
  View attention_out_;  // by head of keys; in qkv_'s memory: the two are never needed at once
  View grad_queries_, grad_keys_, grad_values_, grad_attention_probs_;  // by head of keys
  Tensor tokens_, targets_;  // (sequences, tokens), as numbers in fp32
  Tensor rope_cos_sin_;  // (tokens, head_dim): the rotary embedding's cosines, then its sines
};
}  // namespace zero
