// SPDX-License-Identifier: MIT
// Files of a checkpoint with a changed byte, without their end, or changed at random: each is
// refused, or is loaded as it reads.
#include "checkpoint/checkpoint.hpp"

#include <doctest/doctest.h>
#include <malloc.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "memory/state.hpp"
#include "tests/unit/checks.hpp"

namespace {
thread_local std::size_t held = 0, most_held = 0;  // this thread's bytes of `new`: now, most
}
void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  most_held = std::max(most_held, held += malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  held -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace zero::test {
namespace {
namespace fs = std::filesystem;

/// One rank's parameters, master weights and moments, and the Checkpoints that save and load them.
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
  fs::remove(path);  // emptying it instead is slow: some file systems then flush it to the disk
  std::ofstream(path, std::ios::binary) << text;
}
}  // namespace

TEST_CASE("a file with a changed byte, or without its end, is refused or loads what was saved") {
  const fs::path folder = fs::temp_directory_path() / fmt::format("zero_{}", getpid());
  Options options{.task = Task::mlp, .steps = 2, .width = 2, .layers = 2, .save = folder};
  Saver saver(options);
  float third = 0;
  for (int l = 0; l < 2; ++l) {
    for (Replicated* each : {&saver.master, &saver.momentum, &saver.variance}) {
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
    Names owners;  // the tensor of each element, of four bytes
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
          CHECK(at < header);  // some bytes of a header change nothing
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

namespace {
const std::vector<std::string> words = [] {  // pieces of JSON for changed()
  std::string nested = std::string(4999, '[') + std::string(4999, ']'), many = "\"many\":[{}";
  for (int i = 0; i < 9999; ++i) many += ",{}";
  std::vector<std::string> all{nested, nested.substr(0, 99), many + "],", " ", "\x80\2"};
  std::istringstream rest(
      R"(null true -1 0 4 1.5 1e999 9223372036854775808 18446744073709551615 [] {}
      , " "__metadata__":0, "__metadata__":{}, "lm_head.weight":{}, "step":"2", "dtype":"F16",
      "shape":[0], "data_offsets":[0,0], "type":"linear", "rope_scaling":{"type":"linear"},
      "a.rotary_emb.inv_freq":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}, "dropout":1,
      "head_dim":null,)");
  for (std::string word; rest >> word;) all.push_back(word);
  return all;
}();

/// The text with one random change or none, in three of four cases at a sign of JSON or a digit.
std::string changed(std::string text, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  const auto end = [&](std::size_t at) { return std::min(at, text.size()); };
  const char *const digits = "0123456789", *const signs = ",:[]{}0123456789";
  std::size_t at = below(text.size() + 1), size = below(below(8) > 0 ? 12 : 400);
  if (below(4) > 0) at = end(text.find_first_of(signs, below(text.size() + 1)));
  // `part` may be inserted: it is one of `words`, or a piece of the text itself, which repeats a
  // name or a list.
  const std::string part =
      below(2) > 0 ? words[below(words.size())] : text.substr(below(text.size() + 1), size);
  switch (below(6)) {
    case 0:
      return text.replace(at, 1, 1, static_cast<char>(random()));
    case 1:
      return text.replace(at, end(text.find_first_not_of(digits, at)) - at, part);
    case 2:
      return text.erase(at, size);
    case 3:
      return text.replace(at, size, part);
    case 4:
      return below(9) > 0 ? text : text.substr(0, at);
    default:
      const std::size_t most = part.size() > 400 || below(999) > 0 ? 1 : below(9999);
      for (std::size_t times = 0; times < most; ++times) text.insert(end(at + 1), part);
      return text;
  }
}

/// Whether `by` read right a model.safetensors of header `text` and `data`: no key comes twice, the
/// tensors cover the data once and have the model's shapes, and those of fp32 are the weights.
bool is_held(const std::string& data, const std::string& text, const Saver& by) {
  std::size_t keys = 0;
  const auto header = nlohmann::json::parse(text, [&](int depth, auto event, auto&) {
    keys += depth == 1 && event == nlohmann::json::parse_event_t::key;
    return true;
  });
  std::string covered(data.size(), 0);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    for (std::size_t i = begin; i < end; ++i) ++covered.at(i);
  }
  bool holds = keys == header.size() && covered.find_first_not_of(1) == covered.npos;
  const Architecture model = architecture(by.options);
  for (int l = 0; l < by.layout.layers(); ++l) {
    std::int64_t at = 0;
    for (const Parameter& each : model.layers[l]) {
      const ConstView view =
          by.master.layer(l).part(std::exchange(at, at + each.size()), each.size());
      const auto& entry = header.at(each.name);
      const std::string stored = data.substr(entry["data_offsets"][0], view.bytes());
      holds &=
          entry["shape"] == each.shape &&
          (entry["dtype"] != "F32" || std::memcmp(stored.data(), view.data, stored.size()) == 0);
    }
  }
  return holds;
}
}  // namespace

/// FUZZ="COUNT SEED" in the environment tries COUNT files, one per seed from SEED on; FUZZ="COUNT"
/// begins with the time in seconds. A failure prints its seed.
TEST_CASE("a file changed at random is refused at once, in little memory, or read right") {
  std::uint64_t count = 10'000, first = 1;
  const char* const told = std::getenv("FUZZ");
  if (told && std::sscanf(told, "%lu %lu", &count, &first) == 1) first = std::time(nullptr);
  MESSAGE(count << " inputs from seed " << first);
  const fs::path folder = fmt::format("/dev/shm/zero_{}", getpid()), at = folder / "step_1";
  Options options{.task = Task::llama, .steps = INT_MAX, .width = 4, .layers = 1};
  options.heads = 2, options.kv_heads = 1, options.hidden = 4, options.sequence = 4;
  options.vocab = 4, options.save = folder;
  Saver saver(options);
  for (int l = 0; l < saver.layout.layers(); ++l) {
    const std::int64_t size = saver.layout.used_size(l);
    for (auto* each : {&saver.params, &saver.master, &saver.momentum, &saver.variance}) {
      fill(each->layer(l).part(0, size), [](std::int64_t i) { return float(i + 1) / 64; });
    }
  }
  saver.checkpoints->count({});
  REQUIRE(saver.checkpoints->save() == "");
  options.save.clear();
  const fs::path paths[] = {at / "model.safetensors", at / "config.json",
                            at / "optimizer.safetensors"};
  const std::string good[] = {read_file(paths[0]), read_file(paths[1]), read_file(paths[2])};
  const auto ours = nlohmann::json::parse(good[1]);
  int taken = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937_64 random(seed);
    const bool resumes = random() % 2 == 0, of_tensors = resumes || random() % 2 == 0;
    const int which = !of_tensors ? 1 : resumes && random() % 2 == 0 ? 2 : 0;
    std::string text = good[which], data, begin;
    std::uint64_t length = 0;
    if (of_tensors) {
      std::memcpy(&length, text.data(), sizeof(length));
      data = text.substr(8 + length), text = text.substr(8, length);
      if (!resumes) text.erase(1, text.find("},") + 1);  // other programs write no metadata
    }
    for (auto times = 1 + random() % 3; times > 0; --times) {
      std::string& part = random() % 8 > 0 ? text : data;
      part = changed(part, random);
    }
    length = random() % 16 > 0 ? text.size() : random() >> random() % 64;
    if (of_tensors) begin.assign(reinterpret_cast<const char*>(&length), sizeof(length));
    write_file(paths[which], begin + text + data);
    options.resume = resumes ? at.string() : "", options.init = resumes ? "" : paths[0].string();
    std::unique_ptr<Saver> loaded;
    std::string wrong;
    const std::size_t size = fs::file_size(paths[which]), before = most_held = held;
    const std::clock_t since = std::clock();
    alarm(60);  // ends the process if load() hangs
    try {
      loaded = std::make_unique<Saver>(options);
      loaded->checkpoints->load();
    } catch (const Error& error) {
      loaded = nullptr;
      const bool refuses = error.code == ExitCode::data && std::strlen(error.what()) < 1000;
      if (!refuses) wrong = error.what();
    }
    if (most_held - before > 16 * size + (96 << 10))
      wrong = fmt::format("{} bytes taken for {}", most_held - before, size);
    if (std::clock() - since > CLOCKS_PER_SEC) wrong = "a second taken";
    if (loaded && resumes && loaded->state() != saver.state()) wrong = "another state";
    if (loaded && !resumes && of_tensors && !is_held(data, text.substr(0, length), *loaded))
      wrong = "another tensor";
    if (loaded && !of_tensors) {
      const auto found = nlohmann::json::parse(text);
      for (const char* name : {"model_type", "rope_theta", "rms_norm_eps", "num_attention_heads"}) {
        if (found.value(name, ours[name]) != ours[name]) wrong = name;
      }
    }
    if (!wrong.empty()) FAIL("seed " << seed << ", see " << paths[which] << ": " << wrong);
    taken += loaded != nullptr;
    write_file(paths[which], good[which]);
  }
  alarm(0);
  MESSAGE(taken << " were taken");
  fs::remove_all(folder);
}
}  // namespace zero::test
