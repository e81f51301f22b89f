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
          .groups = o.kv_heads,
          .queries = o.heads / o.kv_heads,
          .size = o.width / o.heads};
}

/// Rows of each part of the activations. Parts begin at multiples of 64 bytes, with --recompute and
/// without, because on a GPU the alignment may change the order of a sum, and so its bits.
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
  const std::int64_t w = s.width, f = s.hidden, kv = s.keys_width(), heads = s.groups * s.queries;
  const float scale = 0.02f * std::numbers::sqrt3_v<float>;  // a standard deviation of 0.02
  Architecture model{.inputs = s.tokens, .targets = s.tokens};
  model.words = fmt::format("llama: {} blocks of width {}, heads {}/{}, hidden {}, {} tokens of {}",
                            s.blocks, w, heads, s.groups, f, s.tokens, s.vocabulary);
  model.config = fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
 "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
 "num_attention_heads": {}, "num_key_value_heads": {}, "max_position_embeddings": {},
 "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false,
 "mlp_bias": false, "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": null}}
)",
      s.vocabulary, w, f, s.blocks, heads, s.groups, s.tokens);
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
  const std::int64_t sets = options.recompute ? 1 : s.blocks;
  const std::int64_t once = (s.blocks + 3) * w + 2 * s.vocabulary;
  const std::int64_t kept = 5 * w + 2 * kv + heads * s.tokens + 3 * f;
  const std::int64_t back = 2 * s.heads_width() + heads * s.tokens;
  model.activations = {
      b * rows * (once + sets * kept + back),
      fmt::format("{} x {} x ({} + {} x {} + {})", b, grouped(rows), once, sets, kept, back)};
  model.loaded = model.activations.bytes;
  model.data = {4 * (2 * s.rows() + s.tokens * s.size),
                fmt::format("4 x (2 x {} + {} x {})", grouped(s.rows()), s.tokens, s.size)};
  return model;
}

/// Tensors with the same input are one: `heads` is the queries, keys, values; `pair` is gate, up.
template <class Elements> struct Llama::BlockOf {
  BlockOf(Elements layer, const LlamaShape& of) {
    const std::int64_t w = of.width;
    norm = take(layer, w), norm_middle = take(layer, w);
    heads = take(layer, of.heads_width() * w), mix = take(layer, w * w);
    pair = take(layer, 2 * of.hidden * w), down = layer;  // with the padding
  }
  Elements norm, norm_middle, heads, mix, pair, down;
};

Llama::Llama(const Options& options, Stream& stream)
    : stream_(stream),
      shape_(shape_of(options)),
      scale_(1 / std::sqrt(static_cast<float>(shape_.size))),
      recompute_(options.recompute),
      activations_(stream.device(), Kind::activations, options.dtype,
                   llama_architecture(options).activations.bytes / bytes_of(options.dtype)),
      tokens_(stream.device(), Kind::data, Dtype::fp32, shape_.rows()),
      targets_(stream.device(), Kind::data, Dtype::fp32, shape_.rows()),
      turns_(stream.device(), Kind::data, Dtype::fp32, shape_.tokens * shape_.size) {
  const std::int64_t tokens = shape_.tokens, width = shape_.width, size = shape_.size;
  const std::int64_t keys_width = shape_.keys_width();
  const std::int64_t shares_width = shape_.groups * shape_.queries * tokens;
  View rest = activations_.all();
  const auto cut = [&, room = room_for_rows(shape_, options.dtype)](std::int64_t columns) {
    return take(rest, room * columns).part(0, shape_.rows() * columns);
  };
  for (int l = 0; l <= shape_.blocks; ++l) inputs_.push_back(cut(width));
  delta_ = cut(width);
  normed_ = cut(width);
  logits_ = cut(shape_.vocabulary);
  logits_delta_ = cut(shape_.vocabulary);
  for (int set = 0; set < (recompute_ ? 1 : shape_.blocks); ++set) {  // memory is cut in this order
    kept_.push_back({.normed = cut(width),
                     .queries = cut(width),
                     .keys = cut(keys_width),
                     .values = cut(keys_width),
                     .shares = cut(shares_width),
                     .mixed = cut(width),
                     .middle = cut(width),
                     .normed_middle = cut(width),
                     .pair = cut(2 * shape_.hidden),
                     .product = cut(shape_.hidden)});
  }
  heads_ = cut(shape_.heads_width());
  mixed_ = heads_.part(0, shape_.rows() * width);
  queries_delta_ = cut(width);
  keys_delta_ = cut(keys_width);
  values_delta_ = cut(keys_width);
  shares_delta_ = cut(shares_width);
  expect(rest.size == 0, "the parts are what the formula counts");

  // Rotary embedding: each token turns pair i of a head by another 10000^(-2i / size). The angle of
  // token p is reached by p turns, as portable_turn() takes small angles only.
  std::vector<float> turns(turns_.size());
  const std::int64_t half = size / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(half);
    const auto [cosine, sine] = portable_turn(portable_exp_wide(-4 * std::numbers::ln10 * part));
    double c = 1, s = 0;
    for (std::int64_t token = 0; token < tokens; ++token) {
      turns[token * size + i] = static_cast<float>(c);
      turns[token * size + half + i] = static_cast<float>(s);
      const double before = c;
      c = before * cosine - s * sine;
      s = before * sine + s * cosine;
    }
  }
  const View to = turns_.view();
  to.device->copy(to.data, turns.data(), to.bytes());
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
      form(on, block, inputs_[l - 1], kept(l));
      multiply(on, kept(l).product, block.down, inputs_[l]);
      return on.add(kept(l).middle, inputs_[l]);
    }
    ConstView head = params;
    on.rms_norm(inputs_.back(), take(head, shape_.width), normed_);
    multiply(on, normed_, head, logits_);
  });
}

void Llama::loss(Sums& sums, float scale) {
  stream_.run(work_on("loss", {logits_}, {}), [=, this, &on = stream_.kernels(), &sums] {
    on.cross_entropy(logits_, targets_.view(), shape_.rows(), scale, logits_delta_, sums);
  });
}

void Llama::backward(int l, ConstView params, View grads, Write write) {
  stream_.run(work_on("backward", {params}, {grads}), [=, this, &on = stream_.kernels()] {
    if (l == 0) return on.embed_backward(tokens_.view(), delta_, grads, write);
    if (is_block(l)) {
      const Block block(params, shape_);
      const BlockOf<View> to(grads, shape_);
      if (recompute_) form(on, block, inputs_[l - 1], kept(l));
      return block_backward(on, block, inputs_[l - 1], kept(l), to, write);
    }
    ConstView head = params;
    View to = grads;
    const ConstView gain = take(head, shape_.width);
    const View gain_grads = take(to, shape_.width);
    multiply_backward(on, logits_delta_, head, normed_, to, write);
    on.rms_norm_backward(normed_, gain, inputs_.back(), delta_, Write::overwrite, gain_grads,
                         write);
  });
  if (l == 0) live_.give_back();
}

/// y (rows, outputs) = x (rows, inputs) weight^T.
void Llama::multiply(Kernels& on, ConstView x, ConstView weight, View y) const {
  const std::int64_t rows = shape_.rows();
  on.linear_forward({rows, x.size / rows, y.size / rows, false}, x, weight, y, false);
}

/// Gradients of multiply(): of the weight, stored in `grads` or added there, then of x, over x.
void Llama::multiply_backward(Kernels& on, View dy, ConstView weight, View x, View grads,
                              Write write) const {
  const std::int64_t rows = shape_.rows();
  const LinearShape shape{rows, x.size / rows, dy.size / rows, false};
  on.linear_backward_params(shape, {}, dy, x, grads, write);
  on.linear_backward_input(shape, dy, weight, x);
}

/// Forward through a block up to SwiGLU. Backward needs nothing of what follows.
void Llama::form(Kernels& on, const Block& params, ConstView x, const Kept& k) const {
  on.rms_norm(x, params.norm, k.normed);
  multiply(on, k.normed, params.heads, heads_);
  on.split_heads(heads(shape_.queries), columns(0), turns_.view(), k.queries);
  on.split_heads(heads(1), columns(shape_.width), turns_.view(), k.keys);
  on.split_heads(heads(1), columns(shape_.width + shape_.keys_width()), {}, k.values);
  attend(on, k);
  on.merge_heads(heads(shape_.queries), mixed_, {}, {k.mixed, shape_.width});
  multiply(on, k.mixed, params.mix, k.middle);
  on.add(x, k.middle);
  on.rms_norm(k.middle, params.norm_middle, k.normed_middle);
  multiply(on, k.normed_middle, params.pair, k.pair);
  on.swiglu(k.pair, shape_.hidden, k.product);
}

/// Backward through a whole block. delta_ is its output's gradient, and becomes its input's.
void Llama::block_backward(Kernels& on, const Block& params, ConstView x, const Kept& k,
                           const BlockOf<View>& grads, Write write) const {
  multiply_backward(on, delta_, params.down, k.product, grads.down, write);
  on.swiglu_backward(k.product, shape_.hidden, k.pair);
  multiply_backward(on, k.pair, params.pair, k.normed_middle, grads.pair, write);
  on.rms_norm_backward(k.normed_middle, params.norm_middle, k.middle, delta_, Write::add,
                       grads.norm_middle, write);
  multiply_backward(on, delta_, params.mix, k.mixed, grads.mix, write);
  on.split_heads(heads(shape_.queries), {k.mixed, shape_.width}, {}, mixed_);
  attend_backward(on, k);
  on.merge_heads(heads(shape_.queries), queries_delta_, turns_.view(), columns(0));
  on.merge_heads(heads(1), keys_delta_, turns_.view(), columns(shape_.width));
  on.merge_heads(heads(1), values_delta_, {}, columns(shape_.width + shape_.keys_width()));
  multiply_backward(on, heads_, params.heads, k.normed, grads.heads, write);
  on.rms_norm_backward(k.normed, params.norm, x, delta_, Write::add, grads.norm, write);
}

HeadsShape Llama::heads(std::int64_t of_group) const {
  return {shape_.sequences, shape_.tokens, shape_.groups, of_group, shape_.size};
}

Matrix Llama::columns(std::int64_t first) const {
  return {heads_.part(first, heads_.size - first), shape_.heads_width()};
}

/// The groups' matrices, with so many rows per token, from a token's first row and a column on.
Matrices Llama::matrices(View all, std::int64_t rows, std::int64_t columns, std::int64_t token,
                         std::int64_t column) const {
  const std::int64_t start = token * rows * columns + column;
  return {{all.part(start, all.size - start), columns}, shape_.tokens * rows * columns};
}

/// Calls use(rows) for each block of tokens: few enough that its products stay in the cache.
void Llama::for_each_block(auto use) const {
  const std::int64_t tokens = shape_.tokens;
  const std::int64_t step = std::max<std::int64_t>(64, (tokens / 8 + 15) / 16 * 16);
  for (std::int64_t first = 0; first < tokens; first += step) {
    use(CausalRows{tokens, shape_.queries, first, std::min(first + step, tokens)});
  }
}

/// mixed_ = softmax(scale queries keys^T) values, with a causal mask.
void Llama::attend(Kernels& on, const Kept& k) const {
  const std::int64_t count = shape_.sequences * shape_.groups, tokens = shape_.tokens;
  const std::int64_t queries = shape_.queries, size = shape_.size;
  for_each_block([&](const CausalRows& block) {
    const Matrices shares = matrices(k.shares, queries, tokens, block.first);
    const std::int64_t rows = (block.end - block.first) * queries;
    on.products(count, rows, size, block.end, matrices(k.queries, queries, size, block.first),
                transposed(matrices(k.keys, 1, size)), shares);
    on.causal_softmax(block, k.shares, scale_);
    on.products(count, rows, block.end, size, shares, matrices(k.values, 1, size),
                matrices(mixed_, queries, size, block.first));
  });
}

/// Gradients of queries, keys and values, from that of attend()'s result in mixed_. All heads of
/// the group, from a block's first token on, use its keys and values: one product sums over them.
void Llama::attend_backward(Kernels& on, const Kept& k) const {
  const std::int64_t count = shape_.sequences * shape_.groups, tokens = shape_.tokens;
  const std::int64_t queries = shape_.queries, size = shape_.size;
  for_each_block([&](const CausalRows& block) {
    const Matrices delta = matrices(shares_delta_, queries, tokens, block.first);
    const std::int64_t rows = (block.end - block.first) * queries;
    on.products(count, rows, size, block.end, matrices(mixed_, queries, size, block.first),
                transposed(matrices(k.values, 1, size)), delta);
    on.softmax_backward(block, k.shares, scale_, shares_delta_);
    on.products(count, rows, block.end, size, delta, matrices(k.keys, 1, size),
                matrices(queries_delta_, queries, size, block.first));
  });
  for_each_block([&](const CausalRows& block) {
    const auto sum_of = [&](View shares, View x, View to) {
      on.products(count, block.end - block.first, (tokens - block.first) * queries, size,
                  transposed(matrices(shares, queries, tokens, block.first, block.first)),
                  matrices(x, queries, size, block.first), matrices(to, 1, size, block.first));
    };
    sum_of(k.shares, mixed_, values_delta_);
    sum_of(shares_delta_, k.queries, keys_delta_);
  });
}
}  // namespace zero
