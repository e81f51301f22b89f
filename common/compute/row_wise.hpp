// SPDX-License-Identifier: MIT
// Operations on rows, written once. `each_row` and `each_row_sum`, which CPU and GPU define, call a
// body for each element of each row. Operands overlap as in element_wise.hpp.
#pragma once
#include <cmath>

#include "compute/element_wise.hpp"
#include "compute/portable_math.hpp"

namespace zero {
// ---- Where a row begins ----

/// Each row begins `elements` elements behind the row before; 0: all rows are the same.
struct Strided {
  std::int64_t elements;
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const { return row * elements; }
};
/// Row r is row numbers[r] of a table, whose rows have `elements` elements.
struct Named {
  const float* numbers;
  std::int64_t elements;
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    return static_cast<std::int64_t>(numbers[row]) * elements;
  }
};
/// Row r is the code (`elements` numbers) of token r, counted from sample `first` on.
struct Codes {
  TokenSource source;
  std::int64_t first, elements;
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    return source.token(first + row / source.sequence, row % source.sequence) * elements;
  }
};
/// A row per head of a token, numbered by sequence, head of keys, token, head; the head changes
/// fastest. Strides are multiples of `elements`. 32 bits, because GPUs divide 64 bits slowly.
struct HeadRows {
  std::int64_t heads, tokens, kv_heads;
  std::int64_t stride_head = 0, stride_token = 0, stride_group = 0, stride_sequence = 0;
  std::int64_t elements = 0;
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const {
    const auto few = [](std::int64_t count) { return static_cast<std::uint32_t>(count); };
    const std::uint32_t by_token = few(row) / few(heads), by_kv_head = by_token / few(tokens);
    return few(row) % few(heads) * stride_head + by_token % few(tokens) * stride_token +
           by_kv_head % few(kv_heads) * stride_group + by_kv_head / few(kv_heads) * stride_sequence;
  }
};

/// An operand of each_row: row r begins begins(r) elements behind `first`.
template <class Operand, class Begins> struct Rows {
  using Element = typename Operand::Element;
  Operand first;
  Begins begins;
  HOST_DEVICE Operand operator()(std::int64_t row) const { return {first.at + begins(row)}; }
};
template <class Operand, class Begins> Rows(Operand, Begins) -> Rows<Operand, Begins>;

// ---- Bodies ----

struct TokenAndNext {  // token i, counted from sample `first` on, and the next one
  TokenSource source;
  std::int64_t first;
  HOST_DEVICE void operator()(std::int64_t i, float& token, float& next) const {
    const std::int64_t sample = first + i / source.sequence, at = i % source.sequence;
    token = static_cast<float>(source.token(sample, at));
    next = static_cast<float>(source.token(sample, at + 1));
  }
};
struct Behind {  // the token behind sample first + i, which is to be predicted
  TokenSource source;
  std::int64_t first;
  HOST_DEVICE void operator()(std::int64_t i, float& target) const {
    target = static_cast<float>(source.token(first + i, source.sequence));
  }
};

/// Turns the pair (x, y) by an angle. sign: 1, or -1 to turn the pair back.
struct RotatePair {
  float sign;
  template <class T>
  HOST_DEVICE void operator()(std::int64_t, T x, T y, float cosine, float sine, T& to_x,
                              T& to_y) const {
    sine *= sign;
    to_x = narrow<T>(widen(x) * cosine - widen(y) * sine);
    to_y = narrow<T>(widen(y) * cosine + widen(x) * sine);
  }
};

struct SwiGlu {
  template <class T> HOST_DEVICE void operator()(std::int64_t, T gate, T up, T& y) const {
    const float x = widen(gate);
    y = narrow<T>(x * portable_sigmoid(x) * widen(up));
  }
};
struct SwiGluBackward {
  template <class T> HOST_DEVICE void operator()(std::int64_t, T dy, T& gate, T& up) const {
    const float x = widen(gate), sigmoid = portable_sigmoid(x), slope = widen(dy);
    gate = narrow<T>(slope * widen(up) * sigmoid * (1 + x * (1 - sigmoid)));
    up = narrow<T>(slope * x * sigmoid);
  }
};

// A body with `sums`: term() writes so many terms of an element; operator() gets their row sums.

struct RmsNorm {
  static constexpr int sums = 1;
  float count;  // elements of a row
  static HOST_DEVICE float inverse_root(float mean) { return 1 / std::sqrt(mean + 1e-6f); }
  template <class T> HOST_DEVICE void term(float* to, T x, T, T) const {
    to[0] = widen(x) * widen(x);
  }
  template <class T> HOST_DEVICE void operator()(const float* sum, T x, T gain, T& y) const {
    y = narrow<T>(widen(x) * inverse_root(sum[0] / count) * widen(gain));
  }
};

struct RmsNormBackward {
  static constexpr int sums = 2;
  float count;
  Write how;  // whether dx is stored or added
  template <class T> HOST_DEVICE void term(float* to, T dy, T gain, T x, T) const {
    to[0] = widen(x) * widen(x);
    to[1] = widen(dy) * widen(gain) * widen(x);
  }
  template <class T>
  HOST_DEVICE void operator()(const float* sum, T& dy, T gain, T x, T& dx) const {
    const float factor = RmsNorm::inverse_root(sum[0] / count), y = widen(x) * factor;
    const float common = y * (sum[1] * factor / count);
    store(dx, factor * (widen(dy) * widen(gain) - common), how);
    dy = narrow<T>(widen(dy) * y);
  }
};

/// Ignores grad_output where prob is 0: there the mask may hide the token, and grad_output be NaN.
struct SoftmaxBackward {
  static constexpr int sums = 1;
  float scale;
  template <class T> HOST_DEVICE void term(float* to, T prob, T grad_output) const {
    to[0] = widen(prob) > 0 ? widen(prob) * widen(grad_output) : 0;
  }
  template <class T> HOST_DEVICE void operator()(const float* sum, T prob, T& grad_output) const {
    const float x = widen(prob);
    grad_output = narrow<T>(x > 0 ? x * (widen(grad_output) - sum[0]) * scale : 0);
  }
};

/// Implements the Kernels functions below. Base: an ElementWise. Backend has each_row(rows, count,
/// body, Rows ...), where a row has `count` elements; each_row_sum, with the same parameters, for a
/// body with `sums`; and column_sums(dy, grads, write), which stores or adds dy's column sums.
template <class Backend, class Base> class RowWise : public Base {
 public:
  using Base::Base;

  void text_samples(const TokenSource& source, ConstView codes, std::int64_t first, View inputs,
                    View targets) final {
    with_type(inputs.dtype, [&]<class T>(T) {
      const std::int64_t rows = targets.size * source.sequence, size = inputs.size / rows;
      on().each_row(rows, size, Round(),
                    Rows{In<float>{of<float>(codes)}, Codes{source, first, size}},
                    Rows{Out<T>{of<T>(inputs)}, Strided{size}});
    });
    on().each(targets.size, Behind{source, first}, Out<float>{of<float>(targets)});
  }

  void token_samples(const TokenSource& source, std::int64_t first, View inputs,
                     View targets) final {
    on().each(inputs.size, TokenAndNext{source, first}, Out<float>{of<float>(inputs)},
              Out<float>{of<float>(targets)});
  }

  void embed(ConstView tokens, ConstView table, View y) final {
    with_type(y.dtype, [&]<class T>(T) {
      const std::int64_t width = y.size / tokens.size;
      on().each_row(tokens.size, width, Round(),
                    Rows{In<T>{of<T>(table)}, Named{of<float>(tokens), width}},
                    Rows{Out<T>{of<T>(y)}, Strided{width}});
    });
  }

  void rms_norm(ConstView x, ConstView gain, View y) final {
    with_type(y.dtype, [&]<class T>(T) {
      const Strided row{gain.size};
      on().each_row_sum(y.size / gain.size, gain.size, RmsNorm{static_cast<float>(gain.size)},
                        Rows{In<T>{of<T>(x)}, row}, Rows{In<T>{of<T>(gain)}, Strided{0}},
                        Rows{Out<T>{of<T>(y)}, row});
    });
  }

  void rms_norm_backward(View dy, ConstView gain, ConstView x, View dx, Write how, View grads,
                         Write write) final {
    with_type(dy.dtype, [&]<class T>(T) {
      const Strided row{gain.size};
      on().each_row_sum(dy.size / gain.size, gain.size,
                        RmsNormBackward{static_cast<float>(gain.size), how},
                        Rows{InOut<T>{of<T>(dy)}, row}, Rows{In<T>{of<T>(gain)}, Strided{0}},
                        Rows{In<T>{of<T>(x)}, row}, Rows{InOut<T>{of<T>(dx)}, row});
    });
    on().column_sums(dy, grads, write);
  }

  void split_heads(const HeadsShape& shape, const ConstMatrix& by_token, ConstView rope_cos_sin,
                   View by_kv_head) final {
    with_type(by_kv_head.dtype, [&]<class T>(T) {
      const HeadRows begins = columns_of(shape, by_token);
      move_heads(shape, Rows{In<T>{of<T>(by_token.elements)}, begins}, rope_cos_sin, 1,
                 Rows{Out<T>{of<T>(by_kv_head)}, Strided{shape.head_dim}});
    });
  }
  void merge_heads(const HeadsShape& shape, ConstView by_kv_head, ConstView rope_cos_sin,
                   const Matrix& by_token) final {
    with_type(by_kv_head.dtype, [&]<class T>(T) {
      const HeadRows begins = columns_of(shape, by_token);
      move_heads(shape, Rows{In<T>{of<T>(by_kv_head)}, Strided{shape.head_dim}}, rope_cos_sin, -1,
                 Rows{Out<T>{of<T>(by_token.elements)}, begins});
    });
  }

  void softmax_backward(const CausalRows& rows, ConstView attention_probs, float scale,
                        View grad_output) final {
    with_type(attention_probs.dtype, [&]<class T>(T) {
      on().each_row_sum(rows.rows_in(attention_probs), rows.end, SoftmaxBackward{scale},
                        Rows{In<T>{of<T>(attention_probs)}, rows},
                        Rows{InOut<T>{of<T>(grad_output)}, rows});
    });
  }

  void swiglu(ConstView gate_up, std::int64_t hidden, View y) final {
    with_type(y.dtype, [&]<class T>(T) {
      const T* gate = of<T>(gate_up);
      const Strided row{2 * hidden};
      on().each_row(y.size / hidden, hidden, SwiGlu(), Rows{In<T>{gate}, row},
                    Rows{In<T>{gate + hidden}, row}, Rows{Out<T>{of<T>(y)}, Strided{hidden}});
    });
  }
  void swiglu_backward(ConstView dy, std::int64_t hidden, View gate_up) final {
    with_type(dy.dtype, [&]<class T>(T) {
      T* gate = of<T>(gate_up);
      const Strided row{2 * hidden};
      on().each_row(dy.size / hidden, hidden, SwiGluBackward(),
                    Rows{In<T>{of<T>(dy)}, Strided{hidden}}, Rows{InOut<T>{gate}, row},
                    Rows{InOut<T>{gate + hidden}, row});
    });
  }

  void add(ConstView x, View y) final {
    with_type(y.dtype,
              [&]<class T>(T) { on().each(y.size, Add(), In<T>{of<T>(x)}, InOut<T>{of<T>(y)}); });
  }

 private:
  /// Returns where each head begins in a matrix whose rows are tokens.
  static HeadRows columns_of(const HeadsShape& shape, const auto& by_token) {
    return {.heads = shape.heads_per_kv,
            .tokens = shape.tokens,
            .kv_heads = shape.kv_heads,
            .stride_head = shape.head_dim,
            .stride_token = by_token.row_stride,
            .stride_group = shape.heads_per_kv * shape.head_dim,
            .stride_sequence = shape.tokens * by_token.row_stride,
            .elements = shape.head_dim};
  }

  /// from, to: one row per head of each token, numbered as in HeadRows.
  template <class From, class To>
  void move_heads(const HeadsShape& shape, const From& from, ConstView rope_cos_sin, float sign,
                  const To& to) {
    const std::int64_t half = shape.head_dim / 2;
    const std::int64_t heads = shape.sequences * shape.tokens * shape.kv_heads * shape.heads_per_kv;
    expect(heads >> 32 == 0, "a head's number must have 32 bits");
    if (rope_cos_sin.size == 0) return on().each_row(heads, shape.head_dim, Round(), from, to);
    const auto second = [=](auto rows) {
      rows.first.at += half;
      return rows;
    };
    const HeadRows by_token{.heads = shape.heads_per_kv,  // all heads of a token have its angles
                            .tokens = shape.tokens,
                            .kv_heads = 1,
                            .stride_token = shape.head_dim,
                            .elements = shape.head_dim};
    const Rows cosines{In<float>{of<float>(rope_cos_sin)}, by_token};
    on().each_row(heads, half, RotatePair{sign}, from, second(from), cosines, second(cosines), to,
                  second(to));
  }

  Backend& on() { return static_cast<Backend&>(*this); }
  template <class T> static auto* of(auto view) { return Backend::template elements<T>(view); }
};
}  // namespace zero
