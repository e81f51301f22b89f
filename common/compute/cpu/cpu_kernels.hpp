// SPDX-License-Identifier: MIT
// The CPU's kernels: each call does its work before it returns.
#pragma once
#include <cstring>

#include "compute/cpu/matmul.hpp"
#include "compute/cpu/team.hpp"
#include "compute/element_wise.hpp"
#include "compute/portable_math.hpp"

namespace zero {
class CpuKernels : public ElementWise<CpuKernels> {
 public:
  /// threads: that share Adam's work.
  explicit CpuKernels(int threads = 1) : team_(threads) {}

  Mark record() override { return nullptr; }
  Mark record_time(const Mark&) override { return nullptr; }
  void wait(const Mark& mark) override { wait_for(mark); }  // a GPU's: the CPU passes none
  void* queue() override { return nullptr; }

  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void text_samples(const TextSource& source, std::int64_t first, View inputs,
                    View targets) override {
    with_type(inputs.dtype, [&]<class T>(T) {
      const auto* text = reinterpret_cast<const unsigned char*>(source.text);
      const float* codes = elements<float>(source.codes);
      const auto positions = static_cast<std::uint64_t>(source.length - source.context);
      T* input = elements<T>(inputs);
      for (std::int64_t row = 0; row < targets.size; ++row) {
        const std::uint64_t position = source.positions.bits(first + row) % positions;
        for (std::int64_t i = 0; i < source.context; ++i) {
          const float* code = codes + text[position + i] * source.code_size;
          input = std::transform(code, code + source.code_size, input, narrow<T>);
        }
        elements<float>(targets)[row] = text[position + source.context];
      }
    });
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

  /// The product is formed in fp32 and rounded once, after bias and ReLU.
  void linear_forward(const LinearShape& shape, View x, View params, View y, bool relu) override {
    with_type(params.dtype, [&]<class T>(T) {
      const T* bias = elements<T>(params) + shape.weights();
      matmul({x, shape.inputs}, {params.part(0, shape.weights()), shape.inputs, true}, shape.batch,
             shape.inputs, shape.outputs, [&](const RowPart& part) {
               const auto apply = [&](auto... bias_of_column) {
                 each(part.count, BiasRelu{relu}, In<float>{part.values},
                      Out<T>{elements<T>(y) + part.at}, bias_of_column...);
               };
               shape.bias ? apply(In<T>{bias + part.column}) : apply();
             });
    });
  }

  void linear_backward_params(const LinearShape& shape, View y, View dy, View x, View grads,
                              Write write) override {
    with_type(grads.dtype, [&]<class T>(T) {
      each(y.size, Mask(), In<T>{elements<T>(y)}, InOut<T>{elements<T>(dy)});
      T* grad = elements<T>(grads);
      const auto form = [&](auto to) {
        matmul({dy, shape.outputs, true}, {x, shape.inputs}, shape.outputs, shape.batch,
               shape.inputs, to);
      };
      if (grads.dtype == Dtype::fp32 && write == Write::overwrite && shape.inputs % 16 == 0) {
        form(elements<float>(grads));
      } else {
        form([&](const RowPart& part) { put(part.count, write, part.values, grad + part.at); });
      }
      for (std::int64_t j = 0; j < shape.outputs && shape.bias; ++j) {
        const T* delta = elements<T>(dy) + j;
        float sum = 0;
        for (std::int64_t i = 0; i < shape.batch; ++i) sum += widen(delta[i * shape.outputs]);
        store(grad[shape.weights() + j], sum, write);
      }
      std::fill(grad + grads.used, grad + grads.size, T{});
    });
  }

  void linear_backward_input(const LinearShape& shape, View dy, View params, View dx) override {
    with_type(params.dtype, [&]<class T>(T) {
      matmul({dy, shape.outputs}, {params.part(0, shape.weights()), shape.inputs}, shape.batch,
             shape.outputs, shape.inputs, [&](const RowPart& part) {
               put(part.count, Write::overwrite, part.values, elements<T>(dx) + part.at);
             });
    });
  }

  void cross_entropy(View outputs, View targets, std::int64_t rows, float scale, View delta,
                     Sums& sums) override {
    with_type(outputs.dtype, [&]<class T>(T) {
      const T* y = elements<T>(outputs);
      T* dy = elements<T>(delta);
      const std::int64_t count = outputs.size / rows;
      const float factor = static_cast<float>(scale / static_cast<double>(rows));
      double loss = 0;
      for (std::int64_t row = 0; row < rows; ++row, y += count, dy += count) {
        const auto target = static_cast<std::int64_t>(elements<float>(targets)[row]);
        float largest = widen(y[0]);
        for (std::int64_t j = 1; j < count; ++j) largest = std::max(largest, widen(y[j]));
        const auto power = [=](T x) { return portable_exp(widen(x) - largest); };
        const auto term = [=](auto, T x, float& to) { to = power(x); };
        float sum = 0, terms[block];
        for (std::int64_t start = 0; start < count; start += block) {
          const std::int64_t some = std::min(block, count - start);
          each(some, term, In<T>{y + start}, Out<float>{terms});
          for (std::int64_t j = 0; j < some; ++j) sum += terms[j];
        }
        const auto slope = [=](auto, T x, T& to) { to = narrow<T>(power(x) / sum * factor); };
        each(count, slope, In<T>{y}, Out<T>{dy});
        dy[target] = narrow<T>((power(y[target]) / sum - 1) * factor);
        loss += portable_log(sum) + largest - widen(y[target]);
      }
      sums.totals.loss += loss / static_cast<double>(rows);
    });
  }

  void clear(Sums& sums) override { sums.totals = {}; }
  void fetch(Sums&) override {}

  void ordered_mean(View own, int rank, View received, View shard, Write write) override {
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
        std::size_t r = 1;  // two in a pass, as the sum goes to the cache and back for each
        for (; r + 1 < sources.size(); r += 2) {
          each(count, add_two, part(r), part(r + 1), InOut<float>{sum});
        }
        if (r < sources.size()) each(count, Add(), part(r), InOut<float>{sum});
        const auto divide_into = [&]<class To>(To to) {
          constexpr Write how = To::read ? Write::add : Write::overwrite;
          const auto mean = [=](auto, float x, T& place) { store(place, x / divisor, how); };
          each(count, mean, In<float>{sum}, to);
        };
        T* out = elements<T>(shard) + start;
        write == Write::add ? divide_into(InOut<T>{out}) : divide_into(Out<T>{out});
      }
    });
  }

  // ---- For ElementWise ----
  template <class T> static T* elements(View view) { return view.as<T>().data(); }

  template <class Body, class... Operands>
  static void each(std::int64_t count, Body body, Operands... operands) {
    // Nothing overlaps but element by element, so that the loop becomes vectors of whatever width.
    on_wide_vectors([=] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) visit(i, body, operands...);
    });
  }

  /// Adam with a copy, rounded a block later, as one loop lacks vector registers; by the team.
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

  template <class Body, class... Operands>
  static void add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
                      Body body, Operands... operands) {
    // Terms in vectors of any width, then sums that wait for each other in vectors of `lanes`.
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
    for (const double sum : partial) sums.totals.*total += sum / divisor;
  }

 private:
  static constexpr std::int64_t block = 1024;  // elements that stay in the first-level cache

  /// to = from, or to + from, by the rule of store().
  template <class From, class T>
  static void put(std::int64_t count, Write write, const From* from, T* to) {
    if (write == Write::add) return each(count, Add(), In<From>{from}, InOut<T>{to});
    each(count, Round(), In<From>{from}, Out<T>{to});
  }

  /// body(i, the elements number i), all read before and written back after it.
  template <class Body, class... Operands>
  static void visit(std::int64_t i, const Body& body, const Operands&... operands) {
    const auto between = [&](auto... x) {
      body(i, x...);
      (save(operands, i, x), ...);
    };
    between((Operands::read ? operands.at[i] : typename Operands::Element())...);
  }
  template <class Operand>
  static void save(const Operand& to, std::int64_t i, typename Operand::Element x) {
    if constexpr (Operand::written) to.at[i] = x;
  }

  Team team_;
};
}  // namespace zero
