// SPDX-License-Identifier: MIT
#include "train/llama.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "compute/portable_math.hpp"
#include "train/step.hpp"

namespace zero {
namespace {
LlamaShape shape_of(const Options& o) {
  return {.blocks = o.layers,
          .sequences = o.batch,
          .tokens = o.sequence,
          .vocabulary = o.vocab,
          .width = o.width,
          .hidden = o.hidden,
          .kv_heads = o.kv_heads,
          .q_per_kv = o.heads / o.kv_heads,
          .head_dim = o.width / o.heads};
}

/// Returns rows(), rounded up so that a part of any width fills a multiple of 64 bytes. So parts
/// begin at multiples of 64 bytes, because on a GPU alignment may change the order of a sum.
std::int64_t room_for_rows(const LlamaShape& shape, Dtype dtype) {
  const std::int64_t step = 64 / bytes_of(dtype);
  return (shape.rows() + step - 1) / step * step;
}

/// Cuts the first `size` elements off a view and returns them.
auto take(auto& from, std::int64_t size) {
  const auto taken = from.part(0, size);
  from = from.part(size, from.size - size);
  return taken;
}

Matrices transposed(Matrices all) {
  all.first.transposed = true;
  return all;
}
}  // namespace

Architecture llama_architecture(const Options& options) {
  const LlamaShape s = shape_of(options);
  const std::int64_t w = s.width, f = s.hidden, kv = s.kv_width(), heads = s.kv_heads * s.q_per_kv;
  const float scale = 0.02f * std::numbers::sqrt3_v<float>;  // a standard deviation of 0.02
  Architecture model{.inputs = s.tokens, .targets = s.tokens};
  model.description =
      fmt::format("llama: {} blocks of width {}, heads {}/{}, hidden {}, {} tokens of {}", s.blocks,
                  w, heads, s.kv_heads, f, s.tokens, s.vocabulary);
  model.config = fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
 "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
 "num_attention_heads": {}, "num_key_value_heads": {}, "max_position_embeddings": {},
 "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false,
 "mlp_bias": false, "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": null}}
)",
      s.vocabulary, w, f, s.blocks, heads, s.kv_heads, s.tokens);
  model.layers.push_back({{"model.embed_tokens.weight", {s.vocabulary, w}, scale}});
  for (int l = 0; l < s.blocks; ++l) {
    const auto in = [&](const char* name) {
      return fmt::format("model.layers.{}.{}.weight", l, name);
    };
    model.layers.push_back({{in("input_layernorm"), {w}, 0, 1},
                            {in("post_attention_layernorm"), {w}, 0, 1},
                            {in("self_attn.q_proj"), {w, w}, scale},
                            {in("self_attn.k_proj"), {kv, w}, scale},
                            {in("self_attn.v_proj"), {kv, w}, scale},
                            {in("self_attn.o_proj"), {w, w}, scale},
                            {in("mlp.gate_proj"), {f, w}, scale},
                            {in("mlp.up_proj"), {f, w}, scale},
                            {in("mlp.down_proj"), {w, f}, scale}});
  }
  model.layers.push_back(
      {{"model.norm.weight", {w}, 0, 1}, {"lm_head.weight", {s.vocabulary, w}, scale}});

  const std::int64_t b = bytes_of(options.dtype), rows = room_for_rows(s, options.dtype);
  // Elements per row, in the constructor's order: `once`, `kept` per set, `back` for all blocks.
  const std::int64_t sets = options.recompute ? 1 : s.blocks;
  const std::int64_t once = (s.blocks + 3) * w + 2 * s.vocabulary;
  const std::int64_t kept = 5 * w + 2 * kv + heads * s.tokens + 3 * f;
  const std::int64_t back = 2 * s.qkv_width() + heads * s.tokens;
  model.activations = {
      b * rows * (once + sets * kept + back),
      fmt::format("{} x {} x ({} + {} x {} + {})", b, grouped(rows), once, sets, kept, back)};
  model.loaded = model.activations.bytes;
  model.data = {4 * (2 * s.rows() + s.tokens * s.head_dim),
                fmt::format("4 x (2 x {} + {} x {})", grouped(s.rows()), s.tokens, s.head_dim)};
  return model;
}

/// Views of a block's tensors. Tensors with the same input share one: qkv_proj, and gate_up_proj.
template <class Elements> struct Llama::BlockOf {
  BlockOf(Elements layer, const LlamaShape& of) {
    const std::int64_t w = of.width;
    input_norm = take(layer, w), post_attention_norm = take(layer, w);
    qkv_proj = take(layer, of.qkv_width() * w), o_proj = take(layer, w * w);
    gate_up_proj = take(layer, 2 * of.hidden * w), down_proj = layer;  // with the padding
  }
  Elements input_norm, post_attention_norm, qkv_proj, o_proj, gate_up_proj, down_proj;
};

Llama::Llama(const Options& options, Stream& stream)
    : stream_(stream),
      shape_(shape_of(options)),
      scale_(1 / std::sqrt(static_cast<float>(shape_.head_dim))),
      recompute_(options.recompute),
      activations_(stream.device(), Kind::activations, options.dtype,
                   llama_architecture(options).activations.bytes / bytes_of(options.dtype)),
      tokens_(stream.device(), Kind::data, Dtype::fp32, shape_.rows()),
      targets_(stream.device(), Kind::data, Dtype::fp32, shape_.rows()),
      rope_cos_sin_(stream.device(), Kind::data, Dtype::fp32, shape_.tokens * shape_.head_dim) {
  const std::int64_t tokens = shape_.tokens, width = shape_.width, head_dim = shape_.head_dim;
  const std::int64_t kv_width = shape_.kv_width();
  const std::int64_t probs_width = shape_.kv_heads * shape_.q_per_kv * tokens;
  View rest = activations_.all();
  const auto cut = [&, room = room_for_rows(shape_, options.dtype)](std::int64_t columns) {
    return take(rest, room * columns).part(0, shape_.rows() * columns);
  };
  for (int l = 0; l <= shape_.blocks; ++l) inputs_.push_back(cut(width));
  grad_output_ = cut(width);
  normed_ = cut(width);
  logits_ = cut(shape_.vocabulary);
  grad_logits_ = cut(shape_.vocabulary);
  for (int set = 0; set < (recompute_ ? 1 : shape_.blocks); ++set) {  // memory is cut in this order
    block_activations_.push_back({.normed = cut(width),
                                  .queries = cut(width),
                                  .keys = cut(kv_width),
                                  .values = cut(kv_width),
                                  .attention_probs = cut(probs_width),
                                  .attention_out = cut(width),
                                  .middle = cut(width),
                                  .normed_middle = cut(width),
                                  .gate_up = cut(2 * shape_.hidden),
                                  .product = cut(shape_.hidden)});
  }
  qkv_ = cut(shape_.qkv_width());
  attention_out_ = qkv_.part(0, shape_.rows() * width);
  grad_queries_ = cut(width);
  grad_keys_ = cut(kv_width);
  grad_values_ = cut(kv_width);
  grad_attention_probs_ = cut(probs_width);
  expect(rest.size == 0, "the parts are what the formula counts");

  // Rotary embedding: token p turns elements i and i + head_dim / 2 of a head by an angle of p *
  // 10000^(-2i / head_dim), reached by p turns, as portable_cos_sin() takes small angles only.
  std::vector<float> rope_cos_sin(rope_cos_sin_.size());
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(half);
    const auto [cosine, sine] = portable_cos_sin(portable_exp_wide(-4 * std::numbers::ln10 * part));
    double c = 1, s = 0;
    for (std::int64_t token = 0; token < tokens; ++token) {
      rope_cos_sin[token * head_dim + i] = static_cast<float>(c);
      rope_cos_sin[token * head_dim + half + i] = static_cast<float>(s);
      const double before = c;
      c = before * cosine - s * sine;
      s = before * sine + s * cosine;
    }
  }
  const View to = rope_cos_sin_.view();
  to.device->copy(to.data, rope_cos_sin.data(), to.bytes());
}

void Llama::load(const Batch& batch) {
  const PhaseScope phase(Phase::load);
  live_ = activations_.borrow();
  stream_.run(work_on("load", {}, {tokens_.view()}),
              [=, &on = stream_.kernels(), tokens = tokens_.view(), targets = targets_.view()] {
                batch.data->load(on, batch.first, tokens, targets);
              });
}

void Llama::forward(int l, ConstView params) {
  stream_.run(work_on("forward", {params}, {}), [=, this, &on = stream_.kernels()] {
    if (l == 0) return on.embed(tokens_.view(), params, inputs_[0]);
    if (is_block(l)) {
      const Block block(params, shape_);
      block_forward(on, block, inputs_[l - 1], activations_of(l));
      multiply(on, activations_of(l).product, block.down_proj, inputs_[l]);
      return on.add(activations_of(l).middle, inputs_[l]);
    }
    ConstView head = params;
    on.rms_norm(inputs_.back(), take(head, shape_.width), normed_);
    multiply(on, normed_, head, logits_);
  });
}

void Llama::loss(Sums& sums, float scale) {
  stream_.run(work_on("loss", {logits_}, {}), [=, this, &on = stream_.kernels(), &sums] {
    on.cross_entropy(logits_, targets_.view(), shape_.rows(), scale, grad_logits_, sums);
  });
}

void Llama::backward(int l, ConstView params, View grads, Write write) {
  stream_.run(work_on("backward", {params}, {grads}), [=, this, &on = stream_.kernels()] {
    if (l == 0) return on.embed_backward(tokens_.view(), grad_output_, grads, write);
    if (is_block(l)) {
      const Block block(params, shape_);
      const BlockOf<View> to(grads, shape_);
      if (recompute_) block_forward(on, block, inputs_[l - 1], activations_of(l));
      return block_backward(on, block, inputs_[l - 1], activations_of(l), to, write);
    }
    ConstView head = params;
    View to = grads;
    const ConstView gain = take(head, shape_.width);
    const View gain_grads = take(to, shape_.width);
    multiply_backward(on, grad_logits_, head, normed_, to, write);
    on.rms_norm_backward(normed_, gain, inputs_.back(), grad_output_, Write::overwrite, gain_grads,
                         write);
  });
  if (l == 0) live_.give_back();
}

/// y (rows, outputs) = x (rows, inputs) weight^T.
void Llama::multiply(Kernels& on, ConstView x, ConstView weight, View y) const {
  const std::int64_t rows = shape_.rows();
  on.linear_forward({rows, x.size / rows, y.size / rows, false}, x, weight, y, false);
}

/// Stores or adds the gradient of multiply()'s weight in `grads`. Overwrites x by its gradient.
void Llama::multiply_backward(Kernels& on, View dy, ConstView weight, View x, View grads,
                              Write write) const {
  const std::int64_t rows = shape_.rows();
  const LinearShape shape{rows, x.size / rows, dy.size / rows, false};
  on.linear_backward_params(shape, {}, dy, x, grads, write);
  on.linear_backward_input(shape, dy, weight, x);
}

/// Computes a block forward up to SwiGLU: backward does not need down_proj's output.
void Llama::block_forward(Kernels& on, const Block& params, ConstView x,
                          const BlockActivations& a) const {
  on.rms_norm(x, params.input_norm, a.normed);
  multiply(on, a.normed, params.qkv_proj, qkv_);
  on.split_heads(heads_shape(shape_.q_per_kv), qkv_columns(0), rope_cos_sin_.view(), a.queries);
  on.split_heads(heads_shape(1), qkv_columns(shape_.width), rope_cos_sin_.view(), a.keys);
  on.split_heads(heads_shape(1), qkv_columns(shape_.width + shape_.kv_width()), {}, a.values);
  attention_forward(on, a);
  on.merge_heads(heads_shape(shape_.q_per_kv), attention_out_, {}, {a.attention_out, shape_.width});
  multiply(on, a.attention_out, params.o_proj, a.middle);
  on.add(x, a.middle);
  on.rms_norm(a.middle, params.post_attention_norm, a.normed_middle);
  multiply(on, a.normed_middle, params.gate_up_proj, a.gate_up);
  on.swiglu(a.gate_up, shape_.hidden, a.product);
}

/// Computes a block backward. grad_output_, the gradient of its output, becomes that of its input.
void Llama::block_backward(Kernels& on, const Block& params, ConstView x, const BlockActivations& a,
                           const BlockOf<View>& grads, Write write) const {
  multiply_backward(on, grad_output_, params.down_proj, a.product, grads.down_proj, write);
  on.swiglu_backward(a.product, shape_.hidden, a.gate_up);
  multiply_backward(on, a.gate_up, params.gate_up_proj, a.normed_middle, grads.gate_up_proj, write);
  on.rms_norm_backward(a.normed_middle, params.post_attention_norm, a.middle, grad_output_,
                       Write::add, grads.post_attention_norm, write);
  multiply_backward(on, grad_output_, params.o_proj, a.attention_out, grads.o_proj, write);
  on.split_heads(heads_shape(shape_.q_per_kv), {a.attention_out, shape_.width}, {}, attention_out_);
  attention_backward(on, a);
  on.merge_heads(heads_shape(shape_.q_per_kv), grad_queries_, rope_cos_sin_.view(), qkv_columns(0));
  on.merge_heads(heads_shape(1), grad_keys_, rope_cos_sin_.view(), qkv_columns(shape_.width));
  on.merge_heads(heads_shape(1), grad_values_, {}, qkv_columns(shape_.width + shape_.kv_width()));
  multiply_backward(on, qkv_, params.qkv_proj, a.normed, grads.qkv_proj, write);
  on.rms_norm_backward(a.normed, params.input_norm, x, grad_output_, Write::add, grads.input_norm,
                       write);
}

HeadsShape Llama::heads_shape(std::int64_t heads_per_kv) const {
  return {shape_.sequences, shape_.tokens, shape_.kv_heads, heads_per_kv, shape_.head_dim};
}

Matrix Llama::qkv_columns(std::int64_t first) const {
  return {qkv_.part(first, qkv_.size - first), shape_.qkv_width()};
}

/// all: (sequences, kv_heads, tokens, rows, columns). Returns, for each head of keys, its (tokens *
/// rows) x columns matrix without the rows before `token`'s and the columns before `column`.
Matrices Llama::matrices(View all, std::int64_t rows, std::int64_t columns, std::int64_t token,
                         std::int64_t column) const {
  const std::int64_t start = token * rows * columns + column;
  return {{all.part(start, all.size - start), columns}, shape_.tokens * rows * columns};
}

/// Calls use(rows) for each tile of tokens, so few that their products stay in the cache: an eighth
/// of the tokens, at least 64, in multiples of 16.
void Llama::for_each_tile(auto use) const {
  const std::int64_t tokens = shape_.tokens;
  const std::int64_t step = std::max<std::int64_t>(64, (tokens / 8 + 15) / 16 * 16);
  for (std::int64_t first = 0; first < tokens; first += step) {
    use(CausalRows{tokens, shape_.q_per_kv, first, std::min(first + step, tokens)});
  }
}

/// attention_out_ = softmax(scale queries keys^T) values, with a causal mask.
void Llama::attention_forward(Kernels& on, const BlockActivations& a) const {
  const std::int64_t count = shape_.sequences * shape_.kv_heads, tokens = shape_.tokens;
  const std::int64_t q_per_kv = shape_.q_per_kv, head_dim = shape_.head_dim;
  for_each_tile([&](const CausalRows& tile) {
    const Matrices attention_probs = matrices(a.attention_probs, q_per_kv, tokens, tile.first);
    const std::int64_t rows = (tile.end - tile.first) * q_per_kv;
    on.products(count, rows, head_dim, tile.end,
                matrices(a.queries, q_per_kv, head_dim, tile.first),
                transposed(matrices(a.keys, 1, head_dim)), attention_probs);
    on.causal_softmax(tile, a.attention_probs, scale_);
    on.products(count, rows, tile.end, head_dim, attention_probs, matrices(a.values, 1, head_dim),
                matrices(attention_out_, q_per_kv, head_dim, tile.first));
  });
}

/// Computes the gradients of queries, keys and values from the gradient of attention_forward()'s
/// result, which is in attention_out_. A token's keys and values are used by all query heads of the
/// group, at this token and later ones: one product sums over these heads and tokens.
void Llama::attention_backward(Kernels& on, const BlockActivations& a) const {
  const std::int64_t count = shape_.sequences * shape_.kv_heads, tokens = shape_.tokens;
  const std::int64_t q_per_kv = shape_.q_per_kv, head_dim = shape_.head_dim;
  for_each_tile([&](const CausalRows& tile) {
    const Matrices grad_probs = matrices(grad_attention_probs_, q_per_kv, tokens, tile.first);
    const std::int64_t rows = (tile.end - tile.first) * q_per_kv;
    on.products(count, rows, head_dim, tile.end,
                matrices(attention_out_, q_per_kv, head_dim, tile.first),
                transposed(matrices(a.values, 1, head_dim)), grad_probs);
    on.softmax_backward(tile, a.attention_probs, scale_, grad_attention_probs_);
    on.products(count, rows, tile.end, head_dim, grad_probs, matrices(a.keys, 1, head_dim),
                matrices(grad_queries_, q_per_kv, head_dim, tile.first));
  });
  for_each_tile([&](const CausalRows& tile) {
    const auto sum_of = [&](View attention_probs, View x, View to) {
      on.products(count, tile.end - tile.first, (tokens - tile.first) * q_per_kv, head_dim,
                  transposed(matrices(attention_probs, q_per_kv, tokens, tile.first, tile.first)),
                  matrices(x, q_per_kv, head_dim, tile.first),
                  matrices(to, 1, head_dim, tile.first));
    };
    sum_of(a.attention_probs, attention_out_, grad_values_);
    sum_of(grad_attention_probs_, a.queries, grad_keys_);
  });
}
}  // namespace zero
