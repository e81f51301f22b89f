// SPDX-License-Identifier: MIT
#include "train/data.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "memory/throw_error.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
constexpr std::int64_t context = 8;  // task text predicts a byte from the 8 bytes before it

/// Fills an fp32 tensor with value(i). The values are computed on the CPU and copied to the device.
void fill(Tensor& tensor, const std::function<float(std::int64_t)>& value) {
  std::vector<float> values(tensor.size());
  for (std::int64_t i = 0; i < tensor.size(); ++i) values[i] = value(i);
  const View to = tensor.view();
  to.device->copy(to.data, values.data(), to.bytes());
}

/// The file of task text or llama: tokens of `width` bytes, in `bytes` bytes from `begin` on.
struct File {
  std::string path;
  std::int64_t begin = 0, bytes = 0, width = 1;
  std::int64_t tokens() const { return bytes / width; }
};

constexpr std::int32_t llm_c = 20240520;  // the first number of llm.c's files of 16-bit tokens

/// Returns NumPy's name of the wider type of whose numbers `halves` look like 16-bit parts; else
/// null. A number's high half is at most 7, or 0xffff below 0, so halves above 7 stand at every
/// second place only. 24 independent 16-bit tokens above 7 do so with a probability of about 2^-24.
const char* wide_type(std::span<const std::uint16_t> halves) {
  std::array<int, 4> large{}, most{};  // by position modulo 4
  for (std::size_t i = 0; i < halves.size(); ++i) {
    if (halves[i] == 0xffff) continue;
    large[i % 4] += halves[i] > 7;
    most[i % 4] = std::max<int>(most[i % 4], halves[i]);
  }
  const auto is_wide = [&](int high, int low) {  // high halves above 0 need large low halves, too
    return large[high] + large[high + 2] == 0 && large[low] + large[low + 2] >= 24 &&
           (most[high] + most[high + 2] == 0 || std::max(most[low], most[low + 2]) > 1023);
  };
  if (is_wide(1, 0)) return large[2] == 0 ? "<i8" : "<i4";
  if (is_wide(0, 1)) return large[1] == 0 ? ">i8" : ">i4";
  return nullptr;
}

/// Throws Error (data) if a file with this begin (first 32 bits: magic) has no 16-bit tokens.
void expect_tokens(const std::string& path, std::span<const std::uint16_t> begin, int magic) {
  const std::string_view text(reinterpret_cast<const char*>(begin.data()), 2 * begin.size());
  // Every kind of file of llm.c's begins with a date as a number.
  const bool swapped = __builtin_bswap32(magic) == llm_c, llm = swapped || magic / 10000 == 2024;
  const auto numbers = begin.subspan(llm ? std::min<std::size_t>(512, begin.size()) : 0);
  const char* const type = swapped ? ">u2" : magic == 20240801 ? "<i4" : wide_type(numbers);
  const auto printed = [](unsigned char c) { return c >= ' ' || (c >= '\t' && c <= '\r'); };
  std::string what, array;
  if (text.starts_with("\x93NUMPY")) {
    what = "an array of NumPy's", array = fmt::format("np.load('{}')", path);
  } else if (text.starts_with("PK\3\4")) {
    what = "an archive",
    array = fmt::format("np.concatenate([*np.load('{}').values()], None)", path);
  } else if (text.starts_with("\x1f\x8b\x08") || text.starts_with("\x28\xb5/\xfd") ||
             text.starts_with("PAR1")) {
    what = "packed (gzip, zstd or Parquet): write its tokens as numbers of 16 bits";
  } else if (text.starts_with("MMIDIDX")) {
    what = "an index of Megatron's: name the .bin beside it";
  } else if (type) {
    what = fmt::format("of numbers of {} bits ({})", 8 * (type[2] - '0'), type);
    array = fmt::format("np.fromfile('{}', '{}', offset={})", path, type, llm ? 1024 : 0);
  } else if (llm && magic != llm_c) {
    what = fmt::format("llm.c's {}, no tokens: its dev/data/tinyshakespeare.py writes some", magic);
  } else if (text.size() >= 100 && text.find_first_of(" \n") != text.npos &&
             std::ranges::all_of(text.substr(0, 4096), printed)) {
    what = "a text, or points to a file: give its bytes to --data, or fetch it with git lfs pull";
  }
  if (what.empty()) return;
  if (array.empty()) throw_error(ExitCode::data, "{} is {}", path, what);
  throw_error(ExitCode::data,
              "{0} is {1}, no file of tokens of 16 bits, the low byte first: write one with "
              "python3 -c \"import numpy as "
              "np; a = {2}.ravel(); a = a[a >= 0]; assert a.max() < 65536; a.astype('<u2').tofile("
              "'{0}.bin')\" (16 bits hold no vocabulary above 65 536)",
              path, what, array);
}

/// Returns the options' file. Throws Error (data) if it is unreadable, too short or has no tokens.
File file_of(const Options& options) {
  File file{options.tokens.empty() ? options.data : options.tokens};
  std::error_code why;
  file.bytes = static_cast<std::int64_t>(std::filesystem::file_size(file.path, why));
  std::ifstream from;
  if (!why) from.open(file.path, std::ios::binary);
  if (!why && !from.is_open()) why = {errno, std::generic_category()};
  if (why) throw_error(ExitCode::data, "cannot read {}: {}", file.path, why.message());
  if (!options.tokens.empty()) {
    std::vector<std::uint16_t> read(1 << 15);
    from.read(reinterpret_cast<char*>(read.data()), 2 * std::ssize(read));
    read.resize(from.gcount() / 2);
    // nanoGPT's files have no header; llm.c's has 256 32-bit numbers: magic, version, tokens, ...
    std::array<std::int32_t, 3> header{};
    std::memcpy(header.data(), read.data(), std::min(sizeof header, 2 * read.size()));
    expect_tokens(file.path, read, header[0]);
    if (header[0] == llm_c) {
      file.begin = 1024;
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

/// Holds a file's tokens in the device's memory.
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
  Buffer text_;
  std::uint64_t digest_ = 0;

 protected:
  const TokenSource source_;
};

/// Task text: predict a byte of a text from the `context` bytes before it.
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

/// Task llama: predict each token of a sequence from the tokens before it.
struct Tokens : FromFile {
  Tokens(const Options& options, Device& device, int rank, int ranks)
      : FromFile(options, device, options.sequence, rank, ranks) {}

  void load(Kernels& on, std::int64_t first, View inputs, View targets) const override {
    on.token_samples(source_, first, inputs, targets);
  }
};

/// Tasks toy, mlp, tiny: learn the answers of a fixed random teacher, two matrices without a ReLU.
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
  static void fill_uniform(Tensor& matrix, const Generator& random, std::int64_t inputs) {
    const auto scale = static_cast<float>(std::sqrt(6.0 / static_cast<double>(inputs)));
    fill(matrix, [&](std::int64_t i) { return random.uniform(i) * scale; });
  }

  Tensor first_;  // (inputs, 16)
  Tensor second_;  // (16, targets)
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
