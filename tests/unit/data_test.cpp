// SPDX-License-Identifier: MIT
// The samples: the same whoever asks for them, and those that the note describes.
#include "train/data.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "config.hpp"
#include "tests/unit/checks.hpp"
#include "tests/unit/elements.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

/// A folder of this test's own, gone with it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "zero-data-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

Options text_options(const std::string& file) { return {.data = file, .width = 32, .seed = 4}; }

Options teacher_options(Task task) { return {.task = task, .width = 24, .layers = 2, .seed = 4}; }

/// The first samples of the micro-batches of `steps` steps, over all ranks.
std::multiset<std::int64_t> numbers(int ranks, int accumulate, int steps) {
  Options options = teacher_options(Task::mlp);
  options.batch = 3;
  options.accumulate = accumulate;
  std::multiset<std::int64_t> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto data = make_data(options, Device::cpu, rank, ranks);
    for (int step = 0; step < steps; ++step) {
      for (int micro = 0; micro < accumulate; ++micro) all.insert((*data)(step, micro).first);
    }
  }
  return all;
}

test::LoadedSamples sample_of(const Data& data, const Options& options, std::int64_t index) {
  return test::load_samples(data, architecture(options), index, 1);
}

// The note's generator once more, from the note.

std::uint64_t scrambled(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return scrambled(scrambled(scrambled(seed) ^ stream) + index * 0x9e3779b97f4a7c15);
}

float uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return static_cast<float>(
      std::ldexp(static_cast<double>(bits(seed, stream, index) >> 40) - std::ldexp(1.0, 23), -23));
}

/// What the note's teacher answers, in fp32, sums from the first term on.
std::vector<float> answer(std::uint64_t seed, const std::vector<float>& input,
                          std::int64_t outputs) {
  /// Row vector times a matrix of that stream, terms x columns.
  const auto times = [&](const std::vector<float>& row, std::uint64_t stream,
                         std::int64_t columns) {
    const auto scale = static_cast<float>(std::sqrt(6.0 / static_cast<double>(row.size())));
    std::vector<float> products(columns);
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const float weight = uniform(seed, stream, i * columns + c) * scale;
        const float product = row[i] * weight;
        products[c] += product;
      }
    }
    return products;
  };
  return times(times(input, 4, 16), 5, outputs);
}

/// Making data from this file, or asking for its length, must fail as a matter of data.
void check_refused(const std::string& file, std::vector<std::string> words) {
  words.push_back(file);
  const Options options = text_options(file);
  test::check_refused(ExitCode::data, words, [&] { file_bytes(options); });
  test::check_refused(ExitCode::data, words, [&] { make_data(options, Device::cpu); });
}
}  // namespace

TEST_CASE("a step's samples are the same, however many ranks and micro-batches share them") {
  for (const int steps : {1, 3}) {
    const auto expected = numbers(1, 12, steps);
    for (const int ranks : {12, 4, 3, 2}) CHECK(numbers(ranks, 12 / ranks, steps) == expected);
    // 0, 3, 6, ...: none twice, none left out.
    std::multiset<std::int64_t> all;
    for (int m = 0; m < 12 * steps; ++m) all.insert(3 * m);
    CHECK(expected == all);
  }
}

TEST_CASE("micro-batch m = (step A + a) N + rank begins at sample m batch") {
  Options options = teacher_options(Task::toy);
  options.batch = 5;
  options.accumulate = 2;
  const auto data = make_data(options, Device::cpu, 2, 3);
  CHECK((*data)(0, 0).first == 2 * 5);
  CHECK((*data)(0, 1).first == (1 * 3 + 2) * 5);
  CHECK((*data)(4, 1).first == ((4 * 2 + 1) * 3 + 2) * 5);
  CHECK((*data)(4, 1).data == data.get());
  // Beyond 32 bits: the last step there can be.
  options.batch = 1 << 16;
  options.accumulate = 4;
  CHECK((*make_data(options, Device::cpu, 2, 3))((1 << 30) - 1, 3).first ==
        (((std::int64_t{1} << 32) - 1) * 3 + 2) << 16);
}

TEST_CASE("a sample is the same on every rank, and another for another seed or number") {
  const Folder folder;
  const std::string file = folder.file("text", std::string(1000, 'a') + "bcdefghijklmnop");
  for (Options options :
       {text_options(file), teacher_options(Task::toy), teacher_options(Task::mlp)}) {
    const auto first = make_data(options, Device::cpu, 0, 1);
    const auto other = make_data(options, Device::cpu, 3, 5);
    for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1} << 50}) {
      CHECK(sample_of(*first, options, index) == sample_of(*other, options, index));
    }
    Options reseeded = options;
    reseeded.seed = 5;
    const auto another = make_data(reseeded, Device::cpu);
    CHECK(!(sample_of(*first, options, 0) == sample_of(*another, options, 0)));
    if (options.task == Task::text) continue;  // there, two samples may lie in the same place
    CHECK(!(sample_of(*first, options, 0) == sample_of(*first, options, 1)));
  }
}

TEST_CASE("text: the codes of 8 bytes in a row, and the byte after them") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(scrambled(i));
  const Options options = text_options(folder.file("text", text));
  const auto data = make_data(options, Device::cpu);
  const std::uint64_t places = text.size() - 8;
  std::set<std::uint64_t> seen;
  for (std::uint64_t s = 0; s < 3000; ++s) {
    const std::uint64_t position = bits(4, 2, s) % places;
    seen.insert(position);
    const test::LoadedSamples sample = sample_of(*data, options, s);
    const auto byte = [&](std::uint64_t i) {
      return static_cast<unsigned char>(text[position + i]);
    };
    REQUIRE(sample.targets[0] == byte(8));
    for (int i = 0; i < 32; ++i) {
      REQUIRE(sample.inputs[i] == uniform(4, 3, byte(i / 4) * 4 + i % 4));
    }
  }
  // Every place but with a chance of (1 - 1 / 292)^3000 = 3e-5 each: the last one too.
  CHECK(seen.size() >= places - 2);
  CHECK(seen.count(places - 1) == 1);
}

TEST_CASE("text: nine bytes are enough, for one sample") {
  const Folder folder;
  const Options options = text_options(folder.file("nine", "abcdefghi"));
  CHECK(file_bytes(options) == 9);
  const auto data = make_data(options, Device::cpu);
  CHECK(sample_of(*data, options, 0).targets[0] == 'i');
  CHECK(sample_of(*data, options, 99) == sample_of(*data, options, 0));
}

TEST_CASE("text: a file that is none, or too short, is an error of data with the numbers") {
  const Folder folder;
  check_refused(folder.path() + "/missing", {"cannot read", "No such file"});
  check_refused(folder.file("empty", ""), {"has 0 bytes", "at least 9"});
  check_refused(folder.file("eight", "abcdefgh"), {"has 8 bytes", "at least 9"});
  check_refused(folder.path(), {"cannot read"});
  check_refused("/dev/null", {"cannot read"});
  check_refused(folder.file("file", "abcdefghijkl") + "/below", {"cannot read"});
}

TEST_CASE("the corpus is frozen") {
  // Runs and figures in the notes were made with it. Who changes it makes them again.
  std::ifstream file(default_corpus, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t digest = 0;
  for (const char c : text) digest = scrambled(digest ^ static_cast<unsigned char>(c));
  CHECK(text.size() == 65044);
  CHECK(digest == 0xf90e76786f7468b2);
}

TEST_CASE("toy and mlp: random inputs, and the teacher's answers to the last bit") {
  for (const Task task : {Task::toy, Task::mlp}) {
    const Options options = teacher_options(task);
    const auto data = make_data(options, Device::cpu);
    const std::int64_t outputs = architecture(options).widths.back();
    double squares = 0;
    for (std::uint64_t s = 0; s < 20; ++s) {
      const test::LoadedSamples sample = sample_of(*data, options, s);
      for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
        REQUIRE(sample.inputs[i] == uniform(4, 1, s * sample.inputs.size() + i));
      }
      REQUIRE(sample.targets == answer(4, sample.inputs, outputs));
      for (const float t : sample.targets) squares += static_cast<double>(t) * t;
    }
    CHECK(squares > 0);
  }
}

TEST_CASE("the bytes of the data are as predicted") {
  const Folder folder;
  const std::string file = folder.file("text", std::string(1234, 'x'));
  for (const Options& options :
       {text_options(file), teacher_options(Task::toy), teacher_options(Task::mlp)}) {
    const test::Change change(Kind::data);
    const auto data = make_data(options, Device::cpu);
    const std::int64_t bytes = Data::bytes(options, file_bytes(options));
    CHECK(change.figures() == test::figures({bytes, bytes, bytes, bytes}));
  }
  CHECK(Data::bytes(text_options(file), 1234) == 1234 + 256 * 4 * 4);
  CHECK(Data::bytes(teacher_options(Task::toy), 0) == 16 * (128 + 10) * 4);
  CHECK(Data::bytes(teacher_options(Task::mlp), 0) == 16 * (24 + 24) * 4);
  CHECK(file_bytes(teacher_options(Task::toy)) == 0);
}
}  // namespace zero
