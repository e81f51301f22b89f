// SPDX-License-Identifier: MIT
// The CPU's kernels: each call does its work before it returns.
#pragma once
#include <cstring>
#include <numeric>
#include <utility>

#include "compute/cpu/matmul.hpp"
#include "compute/cpu/team.hpp"
#include "compute/row_wise.hpp"

namespace zero {
/// power = e^((x - largest) * scale), which is at most 1.
struct Power {
  float largest, scale;
  template <class T> void operator()(std::int64_t, T x, float& power) const {
    power = portable_exp((widen(x) - largest) * scale);
  }
};
/// prob = power / sum * factor, rounded.
struct Share {
  float sum, factor;
  template <class T> void operator()(std::int64_t, float power, T& prob) const {
    prob = narrow<T>(power / sum * factor);
  }
};

class CpuKernels : public RowWise<CpuKernels, ElementWise<CpuKernels>> {
 public:
  /// threads: so many threads share an Adam update that also writes rounded weights.
  explicit CpuKernels(int threads = 1) : team_(threads) {}

  DeviceEventPtr record() override { return nullptr; }
  DeviceEventPtr record_time(const DeviceEventPtr&) override { return nullptr; }
  void wait(const DeviceEventPtr& event) override { wait_for(event); }  // a GPU's, or null
  void* queue() override { return nullptr; }

  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                       View targets) override {
    with_type(inputs.dtype, [&]<class T>(T) {
      constexpr std::int64_t hidden_size = TeacherSource::hidden;
      const float* to_hidden = elements<float>(source.first);
      const float* to_outputs = elements<float>(source.second);
      T* input = elements<T>(inputs);
      float* target = elements<float>(targets);
      std::fill(target, target + targets.size, 0.0f);
      const std::int64_t rows = targets.size / source.outputs;
      for (std::int64_t row = 0; row < rows; ++row, target += source.outputs) {
        float hidden[hidden_size] = {};
        for (std::int64_t i = 0; i < source.inputs; ++i) {
          const float x = source.random_inputs.uniform((first + row) * source.inputs + i);
          *input++ = narrow<T>(x);
          const float* weights = to_hidden + i * hidden_size;
          for (std::int64_t h = 0; h < hidden_size; ++h) hidden[h] += x * weights[h];
        }
        for (std::int64_t h = 0; h < hidden_size; ++h) {
          const float* weights = to_outputs + h * source.outputs;
          for (std::int64_t o = 0; o < source.outputs; ++o) target[o] += hidden[h] * weights[o];
        }
      }
    });
  }

  void reserve_products(std::int64_t) override {}

  /// Forms the product in fp32 and rounds it once, after bias and ReLU.
  void linear_forward(const LinearShape& shape, ConstView x, ConstView params, View y,
                      bool relu) override {
    with_type(params.dtype, [&]<class T>(T) {
      const ConstMatrix weight{params.part(0, shape.weights()), shape.inputs, true};
      const T* bias = elements<T>(params) + shape.weights();
      if (!shape.bias && !relu) {
        return product({x, shape.inputs}, weight, shape.batch, shape.inputs, shape.outputs,
                       elements<T>(y), shape.outputs);
      }
      matmul({x, shape.inputs}, weight, shape.batch, shape.inputs, shape.outputs,
             [&](const RowPart& part) {
               const In<float> sums{part.values};
               const Out<T> to{elements<T>(y) + part.row * shape.outputs + part.column};
               if (!shape.bias) return each(part.count, BiasRelu{relu}, sums, to);
               each(part.count, BiasRelu{relu}, sums, to, In<T>{bias + part.column});
             });
    });
  }

  void linear_backward_params(const LinearShape& shape, ConstView y, View dy, ConstView x,
                              View grads, Write write) override {
    with_type(grads.dtype, [&]<class T>(T) {
      each(y.size, Mask(), In<T>{elements<T>(y)}, InOut<T>{elements<T>(dy)});
      T* grad = elements<T>(grads);
      product({dy, shape.outputs, true}, {x, shape.inputs}, shape.outputs, shape.batch,
              shape.inputs, grad, shape.inputs, write);
      for (std::int64_t j = 0; j < shape.outputs && shape.bias; ++j) {
        const T* grad_output = elements<T>(dy) + j;
        float sum = 0;
        for (std::int64_t i = 0; i < shape.batch; ++i) sum += widen(grad_output[i * shape.outputs]);
        store(grad[shape.weights() + j], sum, write);
      }
      std::fill(grad + grads.used, grad + grads.size, T{});
    });
  }

  void linear_backward_input(const LinearShape& shape, ConstView dy, ConstView params,
                             View dx) override {
    with_type(params.dtype, [&]<class T>(T) {
      product({dy, shape.outputs}, {params.part(0, shape.weights()), shape.inputs}, shape.batch,
              shape.outputs, shape.inputs, elements<T>(dx), shape.inputs);
    });
  }

  void cross_entropy(ConstView outputs, ConstView targets, std::int64_t rows, float scale,
                     View grad_output, Sums& sums) override {
    with_type(outputs.dtype, [&]<class T>(T) {
      const std::int64_t count = outputs.size / rows;
      const float factor = static_cast<float>(scale / static_cast<double>(rows));
      std::vector<float> powers(count);
      double loss = 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* y = elements<T>(outputs) + row * count;
        T* dy = elements<T>(grad_output) + row * count;
        const auto target = static_cast<std::int64_t>(elements<float>(targets)[row]);
        const float largest = largest_of(y, count);
        each(count, Power{largest, 1}, In<T>{y}, Out<float>{powers.data()});
        const float sum = std::accumulate(powers.begin(), powers.end(), 0.0f);
        each(count, Share{sum, factor}, In<float>{powers.data()}, Out<T>{dy});
        dy[target] = narrow<T>((powers[target] / sum - 1) * factor);
        loss += portable_log(sum) + largest - widen(y[target]);
      }
      sums.totals.loss += loss / static_cast<double>(rows);
    });
  }

  void embed_backward(ConstView tokens, ConstView dy, View grads, Write write) override {
    with_type(grads.dtype, [&]<class T>(T) {
      const std::int64_t width = dy.size / tokens.size;
      T* grad = elements<T>(grads);
      if (write == Write::overwrite) std::fill(grad, grad + grads.size, T{});
      std::vector<std::int64_t> rows(tokens.size);  // dy's row numbers, by token, then ascending
      const auto token = [&](std::int64_t row) { return elements<float>(tokens)[row]; };
      std::iota(rows.begin(), rows.end(), 0);
      std::ranges::stable_sort(rows, {}, token);
      for (std::size_t end, at = 0; at < rows.size(); at = end) {
        for (end = at; end < rows.size() && token(rows[end]) == token(rows[at]);) ++end;
        sum_rows(elements<T>(dy), std::span(rows).subspan(at, end - at), width, write,
                 grad + static_cast<std::int64_t>(token(rows[at])) * width);
      }
    });
  }

  void products(std::int64_t count, std::int64_t rows, std::int64_t inner, std::int64_t columns,
                const ConstMatrices& a, const ConstMatrices& b, const Matrices& to) override {
    with_type(to.first.elements.dtype, [&]<class T>(T) {
      const auto number = [](const auto& all, std::int64_t i) {
        auto matrix = all.first;
        matrix.elements.data += i * all.batch_stride * std::int64_t{sizeof(T)};
        return matrix;
      };
      for (std::int64_t i = 0; i < count; ++i) {
        product(number(a, i), number(b, i), rows, inner, columns,
                elements<T>(number(to, i).elements), to.first.row_stride);
      }
    });
  }

  void causal_softmax(const CausalRows& rows, View scores, float scale) override {
    with_type(scores.dtype, [&]<class T>(T) {
      std::vector<float> powers(rows.end);
      for (std::int64_t row = 0; row < rows.rows_in(scores); ++row) {
        T* const x = elements<T>(scores) + rows(row);
        const std::int64_t seen = rows.seen(row);
        each(seen, Power{largest_of(x, seen), scale}, In<T>{x}, Out<float>{powers.data()});
        const auto term = [](float* to, float power) { to[0] = power; };
        const float sum = combine_row<1>(seen, 0, std::plus(), term, In<float>{powers.data()})[0];
        each(seen, Share{sum, 1}, In<float>{powers.data()}, Out<T>{x});
        std::fill(x + seen, x + rows.end, T{});
      }
    });
  }

  void clear(Sums& sums) override { sums.totals = {}; }
  void fetch(Sums&) override {}

  void ordered_mean(ConstView own, int rank, ConstView received, View shard, Write write) override {
    with_type(shard.dtype, [&]<class T>(T) {
      std::vector<const T*> sources;
      for (std::int64_t at = 0; at < received.size; at += shard.size) {
        sources.push_back(elements<T>(received) + at);
      }
      sources.insert(sources.begin() + rank, elements<T>(own));
      const auto divisor = static_cast<float>(sources.size());
      const auto add_two = [](auto, T x, T y, float& to) { to = to + widen(x) + widen(y); };
      float sum[block];
      for (std::int64_t start = 0; start < shard.size; start += block) {
        const std::int64_t count = std::min(block, shard.size - start);
        const auto part = [&](std::size_t r) { return In<T>{sources[r] + start}; };
        each(count, Round(), part(0), Out<float>{sum});
        std::size_t r = 1;  // two ranks in a pass, because every pass loads and stores the sum
        for (; r + 1 < sources.size(); r += 2) {
          each(count, add_two, part(r), part(r + 1), InOut<float>{sum});
        }
        if (r < sources.size()) each(count, Add(), part(r), InOut<float>{sum});
        each(count, Divide{divisor}, InOut<float>{sum});
        put(count, write, sum, elements<T>(shard) + start);
      }
    });
  }

  // ---- For ElementWise ----
  template <class T, class Byte> static SameConst<Byte, T>* elements(ViewOf<Byte> view) {
    return view.template as<T>().data();
  }

  template <class Body, class... Operands>
  static void each(std::int64_t count, Body body, Operands... operands) {
    // Operands overlap element by element at most, so vectors of any width have the same result.
    on_wide_vectors([=] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) visit(i, body, operands...);
    });
  }

  /// Adam that also writes rounded weights to `copy`. The team's threads share the elements. Per
  /// block a second loop does the rounding, because a single loop would lack vector registers.
  template <class T>
  void each(std::int64_t count, AdamBody body, In<T> grads, InOut<float> weights,
            InOut<float> momentum, InOut<float> variance, Out<T> copy) {
    team_.each_piece(count, [=, this](std::int64_t first, std::int64_t some) {
      for (std::int64_t at = first; at < first + some; at += block) {
        const std::int64_t n = std::min(block, first + some - at);
        const InOut<float> w{weights.at + at}, m{momentum.at + at}, v{variance.at + at};
        each(n, body, In<T>{grads.at + at}, w, m, v);
        each(n, Round(), In<float>{w.at}, Out<T>{copy.at + at});
      }
    });
  }

  // ---- For RowWise ----
  template <class Body, class... Operands>
  static void each_row(std::int64_t rows, std::int64_t count, Body body, Operands... operands) {
    for (std::int64_t row = 0; row < rows; ++row) each(count, body, operands(row)...);
  }

  template <class Body, class... Operands>
  static void each_row_sum(std::int64_t rows, std::int64_t count, Body body, Operands... operands) {
    const auto term = [=](float* to, auto... x) { body.term(to, x...); };
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto sums = combine_row<Body::sums>(count, 0, std::plus(), term, operands(row)...);
      const auto apply = [=](auto, auto&... x) { body(sums.data(), x...); };
      each(count, apply, operands(row)...);
    }
  }

  static void column_sums(View dy, View grads, Write write) {
    with_type(grads.dtype, [&]<class T>(T) {
      std::vector<std::int64_t> rows(dy.size / grads.size);
      std::iota(rows.begin(), rows.end(), 0);
      sum_rows(elements<T>(dy), std::span(std::as_const(rows)), grads.size, write,
               elements<T>(grads));
    });
  }

  template <class Body, class... Operands>
  static void add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
                      Body body, Operands... operands) {
    // Forms `some` terms in vectors of any width, then adds them to `lanes` sums, in a fixed order.
    constexpr std::int64_t lanes = Body::lanes, some = 32;
    static_assert(some % lanes == 0);
    std::array<double, lanes> partial{};
    on_wide_vectors([=, &partial] {
      std::array<double, lanes> lane{};  // in registers
      double terms[some];
      const auto form = [&](std::int64_t i, double& term) {
        visit(
            i, [&](auto at, auto&... x) { term = body(at, x...); }, operands...);
      };
      std::int64_t i = 0;
      for (; i + some <= count; i += some) {
#pragma GCC ivdep
        for (std::int64_t k = 0; k < some; ++k) form(i + k, terms[k]);
        for (std::int64_t k = 0; k < some; k += lanes) {
          for (std::int64_t l = 0; l < lanes; ++l) lane[l] += terms[k + l];
        }
      }
      for (; i < count; ++i) {
        form(i, terms[0]);
        lane[i % lanes] += terms[0];
      }
      partial = lane;
    });
    sums.totals.*total += std::accumulate(partial.begin(), partial.end(), 0.0) / divisor;
  }

 private:
  static constexpr std::int64_t block = 1024;  // elements that stay in the first-level cache

  /// to (`width` elements) = the sum of the rows `rows` of `from`, in their order, stored or added.
  template <class T>
  static void sum_rows(const T* from, std::span<const std::int64_t> rows, std::int64_t width,
                       Write write, T* to) {
    float sum[block];
    for (std::int64_t start = 0; start < width; start += block) {
      const std::int64_t count = std::min(block, width - start);
      std::fill_n(sum, count, 0.0f);
      for (const std::int64_t row : rows) {
        each(count, Add(), In<T>{from + row * width + start}, InOut<float>{sum});
      }
      put(count, write, sum, to + start);
    }
  }

  /// Returns the largest element of a row; NaN if the first one is NaN. Later NaNs are ignored.
  template <class T> static float largest_of(const T* row, std::int64_t count) {
    const auto larger = [](float a, float b) { return a < b ? b : a; };
    const auto wide = [](float* to, T x) { to[0] = widen(x); };
    return combine_row<1>(count, widen(row[0]), larger, wide, In<T>{row})[0];
  }

  /// term() gives n numbers for each element. For each of the n, returns what `combine` makes of
  /// `none` and all elements' numbers: first per i mod 16, so that no vector width changes a bit.
  template <int n, class Combine, class Term, class... Operands>
  static std::array<float, n> combine_row(std::int64_t count, float none, Combine combine,
                                          Term term, Operands... operands) {
    std::array<float, n> all{};
    on_wide_vectors([=, &all] {
      constexpr std::int64_t lanes = 16;
      float lane[n][lanes];
      for (auto& each : lane) std::fill_n(each, lanes, none);
      const auto take = [&](std::int64_t start, std::int64_t some) {
#pragma GCC ivdep
        for (std::int64_t l = 0; l < some; ++l) {
          float of[n];
          term(of, read(operands, start + l)...);
          for (int s = 0; s < n; ++s) lane[s][l] = combine(lane[s][l], of[s]);
        }
      };
      std::int64_t i = 0;
      for (; i + lanes <= count; i += lanes) take(i, lanes);
      take(i, count - i);
      for (int s = 0; s < n; ++s) all[s] = std::accumulate(lane[s], lane[s] + lanes, none, combine);
    });
    return all;
  }

  /// to = a b, or to + a b, rounded by the rule of store(). If possible, `to` itself has the sums.
  template <class T>
  static void product(const ConstMatrix& a, const ConstMatrix& b, std::int64_t rows,
                      std::int64_t inner, std::int64_t columns, T* to, std::int64_t to_row,
                      Write write = Write::overwrite) {
    if constexpr (std::is_same_v<T, float>) {
      if (columns % 16 == 0 && write == Write::overwrite) {
        return matmul(a, b, rows, inner, columns, to, to_row);
      }
    }
    matmul(a, b, rows, inner, columns, [=](const RowPart& part) {
      put(part.count, write, part.values, to + part.row * to_row + part.column);
    });
  }

  /// to = from, or to + from, by the rule of store().
  template <class From, class T>
  static void put(std::int64_t count, Write write, const From* from, T* to) {
    if (write == Write::add) return each(count, Add(), In<From>{from}, InOut<T>{to});
    each(count, Round(), In<From>{from}, Out<T>{to});
  }

  /// Reads element i of each operand, calls body(i, elements ...), and writes the elements back.
  template <class Body, class... Operands>
  static void visit(std::int64_t i, const Body& body, const Operands&... operands) {
    const auto between = [&](auto... x) {
      body(i, x...);
      (save(operands, i, x), ...);
    };
    between(read(operands, i)...);
  }
  template <class Operand> static auto read(const Operand& from, std::int64_t i) {
    return Operand::read ? from.at[i] : typename Operand::Element();
  }
  template <class Operand>
  static void save(const Operand& to, std::int64_t i, typename Operand::Element x) {
    if constexpr (Operand::written) to.at[i] = x;
  }

  Team team_;
};
}  // namespace zero
