// SPDX-License-Identifier: MIT
// Files in which a byte is another, or that end too soon.
#include "checkpoint/checkpoint.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
namespace fs = std::filesystem;

/// What a trainer holds of a model of 6 + 6 parameters, and a run's checkpoints.
struct Saver {
  explicit Saver(const Options& options) : options(options) {}

  std::vector<std::uint32_t> state() const {
    std::vector<std::uint32_t> all;
    for (const Replicated* each : {&params, &master, &momentum, &variance}) {
      for (const std::uint32_t x : bits(each->view())) all.push_back(x);
    }
    return all;
  }

  Options options;
  const std::unique_ptr<Device> device = make_cpu();
  const Layout layout = layout_of(options, 0, 1);
  Communicator comm{0, 1, nullptr, *device, Dtype::fp32, 0};
  Replicated params{*device, layout, State::parameters, Dtype::bf16};
  Replicated master{*device, layout, State::master, Dtype::fp32};
  Replicated momentum{*device, layout, State::momentum, Dtype::fp32};
  Replicated variance{*device, layout, State::variance, Dtype::fp32};
  const std::unique_ptr<Checkpoints> checkpoints =
      make_checkpoints({options, layout, *device, comm, "", [](const auto& task) { task(); }});
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const fs::path& path, const std::string& text) {
  fs::remove(path);  // some systems write one that is emptied to the disk at once
  std::ofstream(path, std::ios::binary) << text;
}
}  // namespace

TEST_CASE("a file with another byte, or without its end, is refused, or says what was saved") {
  const fs::path folder = fs::temp_directory_path() / fmt::format("zero_{}", getpid());
  Options options{.task = Task::mlp, .steps = 2, .width = 2, .layers = 2, .save = folder};
  Saver saver(options);
  float third = 0;
  for (int l = 0; l < 2; ++l) {
    for (const Replicated* each : {&saver.master, &saver.momentum, &saver.variance}) {
      fill(each->layer(l).part(0, 6), [&](std::int64_t) { return ++third / 3; });
    }
    fill(saver.params.layer(l),
         [&, l](std::int64_t i) { return element(saver.master.layer(l), i); });
  }
  saver.checkpoints->count({});
  REQUIRE(saver.checkpoints->save() == "");
  options.save.clear();
  options.resume = folder / "step_1";
  using Names = std::vector<std::string>;
  for (const auto& [file, suffixes] :
       {std::pair{"model", Names{""}}, std::pair{"optimizer", Names{".exp_avg", ".exp_avg_sq"}}}) {
    Names owners;  // of four bytes each
    for (const std::string& suffix : suffixes) {
      for (const char* layer : {"layers.0.", "layers.1."}) {
        owners.insert(owners.end(), 4, fmt::format("{}weight{}", layer, suffix));
        owners.insert(owners.end(), 2, fmt::format("{}bias{}", layer, suffix));
      }
    }
    const fs::path path = folder / "step_1" / fmt::format("{}.safetensors", file);
    const std::string good = read_file(path);
    const std::size_t header = good.size() - 4 * owners.size();
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string flipped = good;
      flipped[at] ^= static_cast<char>(1 << at % 8);
      for (const std::string& bad : {flipped, good.substr(0, at)}) {
        INFO("byte " << at << " of " << bad.size() << " of the " << file);
        write_file(path, bad);
        try {
          Saver loaded(options);
          loaded.checkpoints->load();
          CHECK(at < header);  // in blanks, say
          CHECK(bad.size() == good.size());
          CHECK(loaded.options.begin.updates == 1);
          CHECK(loaded.state() == saver.state());
        } catch (const Error& error) {
          const std::string said = error.what();
          INFO(said);
          CHECK(error.code == ExitCode::data);
          CHECK(said.size() < 400);
          const bool element = at >= header && bad.size() == good.size();
          CHECK((!element || said.find(owners[(at - header) / 4] + " \"") != said.npos));
        }
      }
    }
    write_file(path, good);
  }
  fs::remove_all(folder);
}
}  // namespace zero::test
