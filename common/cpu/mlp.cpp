// SPDX-License-Identifier: MIT
#include "mlp.hpp"

#include <algorithm>
#include <cmath>

#include "error.hpp"
#include "matmul.hpp"

namespace zero {

namespace {

std::int64_t widest(const Architecture& model) {
  return *std::max_element(model.widths.begin(), model.widths.end());
}

std::vector<Scratch> activation_buffers(const Architecture& model,
                                        std::int64_t batch,
                                        Dtype dtype) {
  std::vector<Scratch> buffers;
  for (const std::int64_t width : model.widths) {
    buffers.emplace_back(Kind::activations, dtype, batch * width);
  }
  return buffers;
}

std::vector<Scratch> delta_buffers(const Architecture& model, std::int64_t batch, Dtype dtype) {
  std::vector<Scratch> buffers;
  for (int i = 0; i < 2; ++i) {
    buffers.emplace_back(Kind::activations, dtype, batch * widest(model));
  }
  return buffers;
}

/// One layer as its product sees it: batch rows of `inputs` and of `outputs`.
struct Layer {
  std::int64_t batch, inputs, outputs;
  bool bias;
};

/// y = relu(x W^T + b), formed in fp32 and rounded once.
void linear_forward(
    const Layer& layer, View x, View params, View y, bool relu, std::span<float> panel) {
  with_type(params.dtype, [&]<class T>(T) {
    const T* bias = params.as<T>().data() + layer.outputs * layer.inputs;
    T* out = y.as<T>().data();
    const View weight = params.part(0, layer.outputs * layer.inputs);
    matmul({x, layer.inputs},
           {weight, layer.inputs, true},
           layer.batch,
           layer.inputs,
           layer.outputs,
           panel,
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               for (std::int64_t j = 0; j < block.columns; ++j) {
                 const std::int64_t column = block.column + j;
                 float value = block.values[i * block.columns + j];
                 if (layer.bias) value += widen(bias[column]);
                 if (relu) value = value < 0 ? 0 : value;  // keeps NaN
                 out[(block.row + i) * layer.outputs + column] = narrow<T>(value);
               }
             }
           });
  });
}

/// The gradient of the weight, dy^T x, of the bias, the column sums of dy, and zero padding.
void linear_backward_params(
    const Layer& layer, View dy, View x, View grads, bool add, std::span<float> panel) {
  with_type(grads.dtype, [&]<class T>(T) {
    T* grad = grads.as<T>().data();
    matmul({dy, layer.outputs, true},
           {x, layer.inputs},
           layer.outputs,
           layer.batch,
           layer.inputs,
           panel,
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               T* row = grad + (block.row + i) * layer.inputs + block.column;
               const float* values = block.values + i * block.columns;
               for (std::int64_t j = 0; j < block.columns; ++j) store(row[j], values[j], add);
             }
           });
    if (layer.bias) {
      const T* delta = dy.as<T>().data();
      T* bias = grad + layer.outputs * layer.inputs;
      for (std::int64_t j = 0; j < layer.outputs; ++j) {
        float sum = 0;
        for (std::int64_t i = 0; i < layer.batch; ++i) sum += widen(delta[i * layer.outputs + j]);
        store(bias[j], sum, add);
      }
    }
    std::fill(grad + grads.used, grad + grads.size, T{});
  });
}

/// dx = dy W, zero where the layer's input was cut off by the ReLU before it.
void linear_backward_input(
    const Layer& layer, View dy, View params, View x, View dx, bool relu, std::span<float> panel) {
  with_type(params.dtype, [&]<class T>(T) {
    const T* input = x.as<T>().data();
    T* delta = dx.as<T>().data();
    const View weight = params.part(0, layer.outputs * layer.inputs);
    matmul({dy, layer.outputs},
           {weight, layer.inputs},
           layer.batch,
           layer.outputs,
           layer.inputs,
           panel,
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               for (std::int64_t j = 0; j < block.columns; ++j) {
                 const std::int64_t at = (block.row + i) * layer.inputs + block.column + j;
                 const bool passes = !relu || widen(input[at]) > 0;
                 delta[at] = narrow<T>(passes ? block.values[i * block.columns + j] : 0.0f);
               }
             }
           });
  });
}

/// Softmax cross-entropy of one row of `count` outputs; writes scale * its gradient / batch.
template <class T>
double cross_entropy(const T* outputs, std::int64_t count, int target, float factor, T* delta) {
  float largest = widen(outputs[0]);
  for (std::int64_t j = 1; j < count; ++j) largest = std::max(largest, widen(outputs[j]));
  float sum = 0;
  for (std::int64_t j = 0; j < count; ++j) sum += std::exp(widen(outputs[j]) - largest);
  for (std::int64_t j = 0; j < count; ++j) {
    const float probability = std::exp(widen(outputs[j]) - largest) / sum;
    delta[j] = narrow<T>((probability - (j == target ? 1.0f : 0.0f)) * factor);
  }
  return std::log(sum) + largest - widen(outputs[target]);
}

/// Mean squared error of one row, times the number of outputs.
template <class T>
double squared_error(
    const T* outputs, std::int64_t count, const float* target, float factor, T* delta) {
  double sum = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    const float difference = widen(outputs[j]) - target[j];
    sum += static_cast<double>(difference) * difference;
    delta[j] = narrow<T>(2 * difference * factor);
  }
  return sum;
}

}  // namespace

Architecture architecture(const Options& options) {
  Architecture model;
  if (options.task == Task::toy) {
    model.widths = {128, 512, 10};
    model.bias = model.relu = false;
    return model;
  }
  model.widths.assign(options.layers + 1, options.width);
  if (options.task == Task::text) {
    model.widths.back() = 256;
    model.classifier = true;
    model.last_scale = 0.1f;
  }
  return model;
}

std::vector<std::int64_t> Architecture::sizes() const {
  std::vector<std::int64_t> sizes;
  for (int l = 0; l < layers(); ++l) sizes.push_back(size(l));
  return sizes;
}

std::int64_t Architecture::activation_bytes(std::int64_t batch, Dtype dtype) const {
  std::int64_t sum = 2 * widest(*this);
  for (const std::int64_t width : widths) sum += width;
  return batch * sum * bytes_of(dtype);
}

Mlp::Mlp(const Options& options, Stream& stream)
    : model_(architecture(options)),
      stream_(stream),
      batch_(options.batch),
      seed_(options.seed),
      activations_(activation_buffers(model_, options.batch, options.dtype)),
      deltas_(delta_buffers(model_, options.batch, options.dtype)),
      targets_(Kind::data, Dtype::fp32, options.batch * model_.targets()),
      panel_(Kind::workspace, Dtype::fp32, panel_elements),
      live_(activations_.size()),
      live_deltas_(2) {
  static_assert(panel_elements == matmul_panel);
  use_one_matmul_thread();
}

void Mlp::initialise(int l, View part, std::int64_t number, std::int64_t first) const {
  const std::int64_t weights = model_.widths[l] * model_.widths[l + 1];
  const float last = l + 1 == model_.layers() ? model_.last_scale : 1.0f;
  const float scale =
      static_cast<float>(std::sqrt(6.0 / static_cast<double>(model_.widths[l]))) * last;
  const Generator random(seed_, RandomStream::weights);
  stream_.run([=] {
    with_type(part.dtype, [&]<class T>(T) {
      T* elements = part.as<T>().data();
      for (std::int64_t i = 0; i < part.size; ++i) {
        const bool weight = first + i < weights;
        elements[i] = narrow<T>(weight ? random.uniform(number + first + i) * scale : 0.0f);
      }
    });
  });
}

void Mlp::load(const Batch& batch) {
  live_[0] = activations_[0].borrow();
  const Loan panel = panel_.borrow();
  const View inputs = live_[0].view();
  const View targets = targets_.view();
  const std::int64_t width = model_.widths[0];
  expect(width <= panel_elements, "a sample's inputs fit into the panel");
  stream_.run([=, this, row = panel.view().as<float>().first(width)] {
    for (std::int64_t i = 0; i < batch_; ++i) {
      batch.data->sample(batch.first + i,
                         row,
                         targets.as<float>().subspan(i * model_.targets(), model_.targets()));
      with_type(inputs.dtype, [&]<class T>(T) {
        std::transform(row.begin(), row.end(), inputs.as<T>().data() + i * width, narrow<T>);
      });
    }
  });
}

void Mlp::forward(int l, View params) {
  live_[l + 1] = activations_[l + 1].borrow();
  const Loan panel = panel_.borrow();
  const bool relu = model_.relu && l + 1 < model_.layers();
  const Layer layer{batch_, model_.widths[l], model_.widths[l + 1], model_.bias};
  stream_.run([=, x = live_[l].view(), y = live_[l + 1].view(), space = panel.view().as<float>()] {
    linear_forward(layer, x, params, y, relu, space);
  });
}

void Mlp::loss(float scale, Sums& sums) {
  for (int i = 0; i < 2; ++i) live_deltas_[i] = deltas_[i].borrow();
  const int last = model_.layers() - 1;
  const std::int64_t count = model_.widths.back();
  const View outputs = live_[last + 1].view();
  const View delta = live_deltas_[last % 2].view();
  stream_.run([=, this, &sums, target = targets_.view().as<float>().data()] {
    with_type(outputs.dtype, [&]<class T>(T) {
      const T* y = outputs.as<T>().data();
      T* dy = delta.as<T>().data();
      const auto rows = static_cast<double>(model_.classifier ? batch_ : batch_ * count);
      const auto factor = static_cast<float>(scale / rows);
      double sum = 0;
      for (std::int64_t i = 0; i < batch_; ++i, y += count, dy += count) {
        sum += model_.classifier ? cross_entropy(y, count, static_cast<int>(target[i]), factor, dy)
                                 : squared_error(y, count, target + i * count, factor, dy);
      }
      sums.loss += sum / rows;
    });
  });
}

void Mlp::backward(int l, View params, View grads, bool add) {
  const Loan panel = panel_.borrow();
  const Layer layer{batch_, model_.widths[l], model_.widths[l + 1], model_.bias};
  const View x = live_[l].view();
  const View dy = live_deltas_[l % 2].view().part(0, batch_ * layer.outputs);
  const View dx = live_deltas_[(l + 1) % 2].view().part(0, batch_ * layer.inputs);
  const auto space = panel.view().as<float>();
  stream_.run([=] { linear_backward_params(layer, dy, x, grads, add, space); });
  if (l > 0) {
    stream_.run(
        [=, relu = model_.relu] { linear_backward_input(layer, dy, params, x, dx, relu, space); });
  }
  live_[l + 1].end();
  if (l > 0) return;
  live_[0].end();
  for (Loan& delta : live_deltas_) delta.end();
}

}  // namespace zero
