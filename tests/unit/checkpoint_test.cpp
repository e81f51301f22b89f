// SPDX-License-Identifier: MIT
// Files that somebody has changed: refused in a sentence, or what they say is what was saved.
#include "checkpoint/checkpoint.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "memory/state.hpp"
#include "tests/unit/checks.hpp"
#include "train/mlp.hpp"

static thread_local std::size_t largest = 0;  // bytes that were asked for at once

void* operator new(std::size_t bytes) {
  largest = std::max(largest, bytes);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace zero::test {
namespace {
namespace fs = std::filesystem;

/// What a trainer holds of a model of 9 + 4 parameters, and a run's checkpoints.
struct Saver {
  explicit Saver(const Options& options) : options(options) {}

  std::vector<float> state() const {
    std::vector<float> all;
    for (const Replicated* each : {&params, &momentum, &variance}) {
      for (const float x : each->view().as<float>()) all.push_back(x);
    }
    return all;
  }

  Options options;
  const std::unique_ptr<Device> device = make_cpu();
  const Layout layout = layout_of(options, 0, 1);
  Communicator comm{0, 1, nullptr, *device, Dtype::fp32, 0};
  Replicated params{*device, layout, State::parameters, Dtype::fp32};
  Replicated momentum{*device, layout, State::momentum, Dtype::fp32};
  Replicated variance{*device, layout, State::variance, Dtype::fp32};
  const std::unique_ptr<Checkpoints> checkpoints =
      make_checkpoints({options, layout, *device, comm, "", 1, [](const auto& task) { task(); }});
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const fs::path& path, const std::string& text) {
  fs::remove(path);  // some systems write one that is emptied to the disk at once
  std::ofstream(path, std::ios::binary) << text;
}

/// One change, of a kind that breaks a format, somewhere in the text.
std::string changed(std::string text, std::mt19937_64& random) {
  const auto below = [&](std::size_t most) { return random() % std::max<std::size_t>(most, 1); };
  const std::size_t at = below(text.size());
  const std::vector<std::string> words{"-1",
                                       "0",
                                       "1",
                                       "4294967296",
                                       "9223372036854775807",
                                       "18446744073709551615",
                                       "1e300",
                                       "4.0",
                                       "null",
                                       "\"",
                                       "{",
                                       "[",
                                       "[[[[[[[[",
                                       ",",
                                       "[1,1,1,1,1,1,1,1]",
                                       "F16",
                                       "layers.0.weight",
                                       "\xff"};
  const std::string& word = words[below(words.size())];
  const std::size_t digit = text.find_first_of("0123456789", at);
  switch (below(9)) {
    case 0:
      text[at] ^= static_cast<char>(1 << below(8));
      break;
    case 1:
      text[below(8)] ^= static_cast<char>(1 << below(8));
      break;
    case 2:
      text.resize(at);
      break;
    case 3:
      text += text.substr(at);
      break;
    case 4:
      text.erase(at, below(20));
      break;
    case 5:
      text.insert(at, word);
      break;
    case 6:
      text.replace(at, std::min(word.size(), text.size() - at), word);
      break;
    case 7:
      text.replace(at, 30, text.substr(below(text.size()), 30));
      break;
    default:
      if (digit == std::string::npos) break;
      text.replace(digit, text.find_first_not_of("0123456789", digit) - digit, word);
  }
  return text;
}
}  // namespace

TEST_CASE("a checkpoint that was changed is refused, or says what was saved") {
  const fs::path folder = fs::temp_directory_path() / fmt::format("zero_{}", getpid());
  Options options{.task = Task::mlp, .steps = 2, .width = 2, .layers = 2};
  options.save = folder;
  Saver saver(options);
  for (const Replicated* each : {&saver.params, &saver.momentum, &saver.variance}) {
    for (int l = 0; l < 2; ++l) {
      fill(each->layer(l).part(0, 6),
           [=](std::int64_t i) { return 0.1f * static_cast<float>(i + l); });
    }
  }
  saver.checkpoints->passed({});
  REQUIRE(saver.checkpoints->save() == "");
  options.save.clear();
  options.resume = folder / "step_1";
  std::mt19937_64 random(1);
  int refused = 0, same = 0;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path path = folder / "step_1" / name;
    const std::string good = read_file(path);
    for (int i = 0; i < 10'000; ++i) {
      const std::string bad = changed(good, random);
      write_file(path, bad);
      INFO("change " << i << " of " << name);
      try {
        largest = 0;
        Saver loaded(options);
        loaded.checkpoints->load();
        ++same;
        CHECK(loaded.options.begin.updates == 1);
        CHECK(loaded.state() == saver.state());
      } catch (const Error& error) {
        ++refused;
        CHECK(error.code == ExitCode::data);
        CHECK(std::string(error.what()).size() < 400);
      }
      CHECK(largest <= bad.size() + 2048);  // of its own the program's list of tensors has less
    }
    write_file(path, good);
  }
  CHECK(refused > 19'000);
  CHECK(same > 10);
  fs::remove_all(folder);
}
}  // namespace zero::test
