// SPDX-License-Identifier: MIT
#include "train/data.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "memory/throw_error.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
constexpr std::int64_t context = 8;  // bytes of a text that predict the next one

/// Fills an fp32 tensor with value(i), made here and copied to where the tensor lies.
void fill(const Tensor& tensor, const std::function<float(std::int64_t)>& value) {
  std::vector<float> values(tensor.size());
  for (std::int64_t i = 0; i < tensor.size(); ++i) values[i] = value(i);
  const View to = tensor.view();
  to.device->copy(to.data, values.data(), to.bytes());
}

/// The file of task text or llama: `bytes` of it, from `begin` on, are tokens of `width` bytes.
struct File {
  std::string path;
  std::int64_t begin = 0, bytes = 0, width = 1;
  std::int64_t tokens() const { return bytes / width; }
};

/// Throws Error (data) when it cannot be read or is too short.
File file_of(const Options& options) {
  File file{options.tokens.empty() ? options.data : options.tokens};
  std::error_code why;
  file.bytes = static_cast<std::int64_t>(std::filesystem::file_size(file.path, why));
  if (static_cast<bool>(why))
    throw_error(ExitCode::data, "cannot read {}: {}", file.path, why.message());
  if (!options.tokens.empty()) {
    // nanoGPT's files have no header; llm.c's have one of 256 numbers that begins with a magic one.
    std::array<std::int32_t, 256> header{};  // magic number, version, tokens
    std::ifstream from(file.path, std::ios::binary);
    if (!from.is_open()) throw_error(ExitCode::data, "cannot read {}", file.path);
    from.read(reinterpret_cast<char*>(header.data()), sizeof header);
    if (header[0] == 20240801)
      throw_error(ExitCode::data,
                  "{} has tokens of 32 bits, as llm.c writes for Llama 3: they should have 16",
                  file.path);
    if (header[0] == 20240520) {
      file.begin = sizeof header;
      if (file.bytes != file.begin + 2 * std::int64_t{header[2]})
        throw_error(ExitCode::data,
                    "{} has {} bytes; by its header they are {} tokens of 2 behind 1024", file.path,
                    file.bytes, header[2]);
    }
    file.bytes -= file.begin;
    file.width = 2;
    if (file.bytes % 2 != 0)
      throw_error(ExitCode::data,
                  "{} has {} bytes of tokens: of 16 bits each they are an even number", file.path,
                  file.bytes);
  }
  const bool llama = options.task == Task::llama;
  const std::int64_t before = llama ? options.sequence : context;
  if (file.tokens() <= before)
    throw_error(ExitCode::data,
                "{} has {} {}; task {} needs at least {}: {} of {} and one to predict", file.path,
                file.tokens(), file.width == 1 ? "bytes" : "tokens", name_of(options.task),
                before + 1, before, llama ? "--sequence" : "context");
  return file;
}

/// A file's tokens, in the device's memory.
class FromFile : public Data {
 public:
  FromFile(const Options& options, Device& device, std::int64_t sequence, int rank, int ranks)
      : Data(options, rank, ranks),
        file_(file_of(options)),
        text_(device, Kind::data, file_.bytes, true),
        source_{text_.data(), file_.tokens(), file_.width, sequence,
                Generator(options.seed, RandomStream::positions)} {
    std::ifstream from(file_.path, std::ios::binary);
    from.seekg(file_.begin);
    std::vector<char> piece(std::size_t{1} << 20);
    for (std::int64_t at = 0; at < file_.bytes; at += from.gcount()) {
      errno = 0;
      from.read(piece.data(), std::min<std::int64_t>(std::ssize(piece), file_.bytes - at));
      if (from.gcount() == 0)
        throw_error(ExitCode::data, "cannot read byte {} of the {} of {}: {}", at, file_.bytes,
                    file_.path, errno ? std::strerror(errno) : "it has become shorter");
      device.copy(text_.data() + at, piece.data(), from.gcount());
      const auto read = std::as_bytes(std::span(piece).first(from.gcount()));
      for (const std::byte byte : read) digest_ = mix(digest_ ^ std::to_integer<unsigned>(byte));
      for (std::int64_t i = 0; file_.width == 2 && i + 1 < std::ssize(read); i += 2) {
        const int token = std::to_integer<int>(read[i]) | std::to_integer<int>(read[i + 1]) << 8;
        if (token >= options.vocab)
          throw_error(ExitCode::data, "token {} of {} is {}: --vocab {} has those from 0 to {}",
                      (at + i) / 2, file_.path, token, options.vocab, options.vocab - 1);
      }
    }
  }

  std::string description() const override {
    return fmt::format("a text of {} bytes with digest {:016x}", file_.bytes, digest_);
  }

 private:
  const File file_;
  const Buffer text_;
  std::uint64_t digest_ = 0;

 protected:
  const TokenSource source_;
};

/// Predict a byte of a text from the `context` bytes before it.
class Text : public FromFile {
 public:
  Text(const Options& options, Device& device, int rank, int ranks)
      : FromFile(options, device, context, rank, ranks),
        codes_(device, Kind::data, Dtype::fp32, 256 * (options.width / context)) {
    const Generator random(options.seed, RandomStream::codes);
    fill(codes_, [&](std::int64_t i) { return random.uniform(i); });
  }

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    on.text_samples(source_, codes_.view(), first, inputs, targets);
  }

 private:
  Tensor codes_;  // (256, width / context)
};

/// Predict each token of a sequence from those before it.
struct Tokens : FromFile {
  Tokens(const Options& options, Device& device, int rank, int ranks)
      : FromFile(options, device, options.sequence, rank, ranks) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    on.token_samples(source_, first, inputs, targets);
  }
};

/// Learn what a fixed random teacher answers: two matrices, inputs x 16 and 16 x outputs.
class Teacher : public Data {
 public:
  Teacher(const Options& options, const Architecture& model, Device& device, int rank, int ranks)
      : Data(options, rank, ranks),
        first_(device, Kind::data, Dtype::fp32, model.inputs * TeacherSource::hidden),
        second_(device, Kind::data, Dtype::fp32, TeacherSource::hidden * model.targets),
        source_{first_.view(), second_.view(), model.inputs, model.targets,
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
  if (options.task == Task::llama) return std::make_unique<Tokens>(options, device, rank, ranks);
  return std::make_unique<Teacher>(options, architecture(options), device, rank, ranks);
}

Figure source_bytes(const Options& options) {
  if (options.task == Task::text || options.task == Task::llama) {
    const std::int64_t file = file_of(options).bytes, code = options.width / context;
    if (options.task == Task::llama) return {file, grouped(file)};
    return {file + 4 * 256 * code, fmt::format("{} + 4 x 256 x {}", grouped(file), code)};
  }
  const Architecture model = architecture(options);
  const std::int64_t hidden = TeacherSource::hidden, in = model.inputs, out = model.targets;
  return {4 * hidden * (in + out), fmt::format("4 x {} x ({} + {})", hidden, in, out)};
}
}  // namespace zero
