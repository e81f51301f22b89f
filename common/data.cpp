// SPDX-License-Identifier: MIT
#include "data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "error.hpp"
#include "mlp.hpp"

namespace zero {

namespace {

constexpr std::int64_t context = 8;  // bytes that predict the next one
constexpr std::int64_t teacher_hidden = 16;

/// Predict a byte of a file from the `context` bytes before it.
class Text : public Data {
 public:
  Text(const Options& options, int rank, int ranks)
      : Data(options, rank, ranks),
        code_size_(options.width / context),
        positions_(options.seed, RandomStream::positions),
        text_(Kind::data, file_bytes(options), true),
        codes_(Kind::data, Dtype::fp32, 256 * code_size_) {
    read(options.data);
    const Generator random(options.seed, RandomStream::codes);
    const auto codes = codes_.view().as<float>();
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = random.uniform(i);
  }

  void sample(std::uint64_t index, std::span<float> input, std::span<float> target) const override {
    const auto* text = reinterpret_cast<const unsigned char*>(text_.data());
    const std::uint64_t position = positions_.bits(index) % (text_.bytes() - context);
    const float* codes = codes_.view().as<float>().data();
    for (std::int64_t i = 0; i < context; ++i) {
      std::copy_n(
          codes + text[position + i] * code_size_, code_size_, input.data() + i * code_size_);
    }
    target[0] = text[position + context];
  }

 private:
  void read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(reinterpret_cast<char*>(text_.data()), text_.bytes())) return;
    throw Error(ExitCode::data,
                fmt::format("{}: fewer than its {} bytes could be read: {}",
                            path,
                            text_.bytes(),
                            std::strerror(errno)));
  }

  std::int64_t code_size_;
  Generator positions_;
  Buffer text_;
  Tensor codes_;  // (256, code_size)
};

/// Learn what a fixed random teacher answers: two matrices, inputs x 16 and 16 x outputs.
class Teacher : public Data {
 public:
  Teacher(const Options& options, const Architecture& model, int rank, int ranks)
      : Data(options, rank, ranks),
        inputs_(model.widths.front()),
        outputs_(model.widths.back()),
        random_inputs_(options.seed, RandomStream::inputs),
        first_(Kind::data, Dtype::fp32, inputs_ * teacher_hidden),
        second_(Kind::data, Dtype::fp32, teacher_hidden * outputs_) {
    fill(first_, Generator(options.seed, RandomStream::teacher_in), inputs_);
    fill(second_, Generator(options.seed, RandomStream::teacher_out), teacher_hidden);
  }

  void sample(std::uint64_t index, std::span<float> input, std::span<float> target) const override {
    for (std::int64_t i = 0; i < inputs_; ++i) {
      input[i] = random_inputs_.uniform(index * inputs_ + i);
    }
    float hidden[teacher_hidden] = {};
    const auto first = first_.view().as<float>();
    const auto second = second_.view().as<float>();
    for (std::int64_t i = 0; i < inputs_; ++i) {
      for (std::int64_t h = 0; h < teacher_hidden; ++h) {
        hidden[h] += input[i] * first[i * teacher_hidden + h];
      }
    }
    std::fill(target.begin(), target.end(), 0.0f);
    for (std::int64_t h = 0; h < teacher_hidden; ++h) {
      for (std::int64_t o = 0; o < outputs_; ++o) target[o] += hidden[h] * second[h * outputs_ + o];
    }
  }

 private:
  static void fill(const Tensor& matrix, const Generator& random, std::int64_t inputs) {
    const auto scale = static_cast<float>(std::sqrt(6.0 / static_cast<double>(inputs)));
    const auto elements = matrix.view().as<float>();
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = random.uniform(i) * scale;
  }

  std::int64_t inputs_;
  std::int64_t outputs_;
  Generator random_inputs_;
  Tensor first_;  // (inputs, 16)
  Tensor second_;  // (16, outputs)
};

}  // namespace

std::unique_ptr<Data> make_data(const Options& options, int rank, int ranks) {
  if (options.task == Task::text) return std::make_unique<Text>(options, rank, ranks);
  return std::make_unique<Teacher>(options, architecture(options), rank, ranks);
}

std::int64_t file_bytes(const Options& options) {
  if (options.task != Task::text) return 0;
  const std::filesystem::path path = options.data;
  std::error_code why;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, why));
  if (why) {
    throw Error(ExitCode::data, fmt::format("cannot read {}: {}", options.data, why.message()));
  }
  if (bytes <= context) {
    throw Error(ExitCode::data,
                fmt::format("{} has {} bytes; task text needs at least {}: {} of "
                            "context and one to predict",
                            options.data,
                            bytes,
                            context + 1,
                            context));
  }
  return bytes;
}

std::int64_t Data::bytes(const Options& options, std::int64_t file_bytes) {
  if (options.task == Task::text) return file_bytes + 256 * (options.width / context) * 4;
  const Architecture model = architecture(options);
  return teacher_hidden * (model.widths.front() + model.widths.back()) * 4;
}

}  // namespace zero
