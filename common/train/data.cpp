// SPDX-License-Identifier: MIT
#include "train/data.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
constexpr std::int64_t context = 8;  // bytes that predict the next one

/// Fills an fp32 tensor with value(i), made here and copied to where the tensor lies.
void fill(const Tensor& tensor, const std::function<float(std::int64_t)>& value) {
  std::vector<float> values(tensor.size());
  for (std::int64_t i = 0; i < tensor.size(); ++i) values[i] = value(i);
  const View to = tensor.view();
  to.device->copy(to.data, values.data(), to.bytes());
}

/// Predict a byte of a file from the `context` bytes before it.
class Text : public Data {
 public:
  Text(const Options& options, Device& device, int rank, int ranks)
      : Data(options, rank, ranks),
        text_(device, Kind::data, file_bytes(options), true),
        codes_(device, Kind::data, Dtype::fp32, 256 * (options.width / context)),
        source_{text_.data(),  text_.bytes(),
                codes_.view(), options.width / context,
                context,       Generator(options.seed, RandomStream::positions)} {
    read(options.data);
    const Generator random(options.seed, RandomStream::codes);
    fill(codes_, [&](std::int64_t i) { return random.uniform(i); });
  }

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    on.text_samples(source_, first, inputs, targets);
  }

  std::string description() const override {
    return fmt::format("a text of {} bytes with digest {:016x}", text_.bytes(), digest_);
  }

 private:
  void read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> piece(std::size_t{1} << 20);
    for (std::int64_t at = 0; at < text_.bytes(); at += file.gcount()) {
      errno = 0;
      file.read(piece.data(), std::min<std::int64_t>(std::ssize(piece), text_.bytes() - at));
      if (file.gcount() == 0) {
        throw Error(ExitCode::data,
                    fmt::format("cannot read byte {} of the {} of {}: {}", at, text_.bytes(), path,
                                errno ? std::strerror(errno) : "it has become shorter"));
      }
      text_.device().copy(text_.data() + at, piece.data(), file.gcount());
      for (const char byte : std::span(piece).first(file.gcount())) {
        digest_ = mix(digest_ ^ static_cast<unsigned char>(byte));
      }
    }
  }

  Buffer text_;
  std::uint64_t digest_ = 0;
  Tensor codes_;  // (256, width / context)
  TextSource source_;
};

/// Learn what a fixed random teacher answers: two matrices, inputs x 16 and 16 x outputs.
class Teacher : public Data {
 public:
  Teacher(const Options& options, const Architecture& model, Device& device, int rank, int ranks)
      : Data(options, rank, ranks),
        first_(device, Kind::data, Dtype::fp32, model.widths.front() * TeacherSource::hidden),
        second_(device, Kind::data, Dtype::fp32, TeacherSource::hidden * model.widths.back()),
        source_{first_.view(), second_.view(), model.widths.front(), model.widths.back(),
                Generator(options.seed, RandomStream::inputs)} {
    fill_uniform(first_, Generator(options.seed, RandomStream::teacher_in), source_.inputs);
    fill_uniform(second_, Generator(options.seed, RandomStream::teacher_out), source_.hidden);
  }

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    on.teacher_samples(source_, first, inputs, targets);
  }

 private:
  static void fill_uniform(const Tensor& matrix, const Generator& random, std::int64_t inputs) {
    const auto scale = static_cast<float>(std::sqrt(6.0 / static_cast<double>(inputs)));
    fill(matrix, [&](std::int64_t i) { return random.uniform(i) * scale; });
  }

  Tensor first_;  // (inputs, 16)
  Tensor second_;  // (16, outputs)
  TeacherSource source_;
};
}  // namespace

std::unique_ptr<Data> make_data(const Options& options, Device& device, int rank, int ranks) {
  if (options.task == Task::text) return std::make_unique<Text>(options, device, rank, ranks);
  return std::make_unique<Teacher>(options, architecture(options), device, rank, ranks);
}

std::int64_t file_bytes(const Options& options) {
  if (options.task != Task::text) return 0;
  const std::filesystem::path path = options.data;
  std::error_code why;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, why));
  throw_if(static_cast<bool>(why), ExitCode::data, "cannot read {}: {}", options.data,
           why.message());
  throw_if(bytes <= context, ExitCode::data,
           "{} has {} bytes; task text needs at least {}: {} of context and one to predict",
           options.data, bytes, context + 1, context);
  return bytes;
}
}  // namespace zero
