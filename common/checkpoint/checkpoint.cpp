// SPDX-License-Identifier: MIT
#include "checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <set>

#include "checkpoint/safetensors.hpp"
#include "compute/generator.hpp"
#include "memory/read_number.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

std::string step_in(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/step_{}", folder, step);
}

std::set<std::int64_t> steps_in(const std::string& folder) {
  std::set<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step_")) continue;
    const auto step = read_number<std::int64_t>(name.substr(5));
    if (step && entry.path() == step_in(folder, *step)) steps.insert(*step);
  }
  return steps;
}

/// Checks the files beside a file of --init. config: this run's config.json; empty: an MLP. Throws
/// Error (data) if they describe another model, or one in several files. Notes ignored dropout and
/// a missing config.json: then returns true, because the head may be tied to the embedding.
bool check_folder(const std::string& source, const std::string& config,
                  std::vector<std::string>& notes) {
  const fs::path folder = fs::path(source).parent_path(), path = folder / "config.json";
  const fs::path whole = folder / "model.safetensors", index = whole.string() + ".index.json";
  std::error_code ignored;
  const bool parts = fs::exists(index, ignored) && !fs::exists(whole, ignored);
  if (parts || source == index)
    throw_error(ExitCode::data,
                "--init {}: its model is in several files, listed in {}; --init reads one", source,
                index.string());
  if (config.empty()) return false;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found) {
    notes.push_back("no " + path.string() +
                    ": the numbers of heads, rope_theta 10000 and rms_norm_eps 1e-06 are this "
                    "run's, because the tensors' shapes do not show them");
    return true;
  }
  const std::string text = read_text(path, 0, most_json);
  json found = read_object(path, text, std::ssize(text)), ours = json::parse(config);
  const json heads = ours["num_attention_heads"], tokens = ours["max_position_embeddings"];
  compare(path, found, {{"num_attention_heads", heads}});  // tensors' shapes do not show heads
  for (const char* name : {"rope_parameters", "rope_scaling"}) {  // null and {} mean the default
    const json& rope = in(found, name);
    const std::string where = fmt::format("{}, {}", path.string(), name);
    compare(where, rope, {{"rope_type", "default"}, {"type", "default"}}, true);
    if (!rope.is_null() && (!rope.is_object() || rope.contains("factor")))
      compare(path, found, {{name, nullptr}});  // throws: this run has no such setting
    compare(path, rope, {{"rope_theta", ours["rope_theta"]}}, true);
  }
  if (in(found, "hidden_act") == "swish") found["hidden_act"] = "silu";  // the same function
  if (in(found, "head_dim").is_null()) found.erase("head_dim");
  if (found.contains("num_key_value_heads") && found["num_key_value_heads"].is_null())
    found["num_key_value_heads"] = heads;
  ours["head_dim"] = ours["hidden_size"].get<int>() / heads.get<int>();
  for (const char* may_differ :
       {"architectures", "dtype", "max_position_embeddings", "bos_token_id", "eos_token_id"}) {
    ours.erase(may_differ);
  }
  compare(path, found, ours, true);
  std::string dropped;  // settings of dropout, which this run's model does not have
  for (const auto& [name, value] : found.items()) {
    const auto has = [&](auto... words) { return ((name.find(words) != name.npos) || ...); };
    if (value.is_null() || value == false || value == 0) continue;
    const bool wide = value.is_number() && value >= tokens;  // no shorter than a sample
    if (has("quantization_config", "softcapping", "clip_qkv") || (has("sliding_window") && !wide))
      compare(path, found, {{name, nullptr}});
    if (has("drop") && dropped.size() < 200) dropped += shown(name) + ' ' + shown(value) + ", ";
  }
  if (!dropped.empty()) notes.push_back(path.string() + ": " + dropped + "which is not applied");
  return false;
}

/// Fills the view, in its dtype, from byte `at` of the file on. Throws Error (data) if an element
/// is NaN, or a weight is infinite. An infinite moment is accepted, because moments may overflow.
void read(const OpenFile& file, std::int64_t at, const StoredTensor& tensor, View to) {
  with_type(tensor.dtype, [&]<class Stored>(Stored) {
    with_type(to.dtype, [&]<class InMemory>(InMemory) {
      std::vector<Stored> stored(to.size);
      file.move(pread, std::as_writable_bytes(std::span(stored)), at);
      std::vector<InMemory> held(to.size);
      for (std::int64_t i = 0; i < to.size; ++i) {
        const float value = widen(stored[i]);
        if (std::isnan(value) || (tensor.state == State::master && std::isinf(value)))
          throw_error(ExitCode::data, "{}: {} has an element that is {}", file.path, tensor.name,
                      std::isnan(value) ? "nan"
                      : value > 0       ? "inf"
                                        : "-inf");
        held[i] = narrow<InMemory>(value);
      }
      to.device->copy(to.data, held.data(), to.bytes());
    });
  });
}

class StepFolders : public Checkpoints, Saved {
 public:
  explicit StepFolders(const Saved& run) : Saved(run) {
    on_all_ranks([&] {
      if (!source_.empty()) find_beginning();
      if (!options.save.empty()) make_folder();
    });
  }

  std::string load() override {
    for (TensorFile& from : sources_) {
      on_all_ranks([&] {
        const OpenFile file(from.path, O_RDONLY);
        for (const StoredTensor& tensor : from.tensors) {
          const auto fill = [&](View held, std::int64_t at) { read(file, at, tensor, held); };
          each_piece(from, tensor, false, fill);
        }
      });
      const json digests = digests_of(from);
      const bool foreign = !options.init.empty();  // then digests may be missing
      on_all_ranks([&] { compare(from.path, from.metadata(), digests, foreign); });
    }
    return source_;
  }

  bool count(const StepResult& step) override {
    loss_scale_.update(step.skipped);
    progress_ = {progress_.steps + 1, progress_.updates + !step.skipped, loss_scale_.value(),
                 loss_scale_.good_steps()};
    const bool due = options.save_every > 0 && progress_.steps % options.save_every == 0;
    return !options.save.empty() && (due || progress_.steps == options.steps);
  }

  std::string path() const override { return step_in(options.save, progress_.steps); }

  /// Writes step.partial, brings it to the disk, then renames it: so each step_N is complete.
  std::string save() override {
    const std::string partial = options.save + "/step.partial";
    std::error_code ignored;
    try {
      on_all_ranks([&] {
        if (comm.rank > 0) return;
        fs::remove_all(partial, ignored);  // left by a run that was killed
        if (mkdir(partial.c_str(), 0777) != 0) throw_errno(partial);
      });
      for (TensorFile& to : files_in(partial)) {
        to.metadata() = metadata_of_run();
        to.metadata().update(digests_of(to));
        const std::string header = to.make_header();
        on_all_ranks([&] {
          const OpenFile file(to.path, O_WRONLY | O_CREAT);
          if (comm.rank == 0) file.move(pwrite, std::span(header), 0);
          for (const StoredTensor& tensor : to.tensors) {
            each_piece(to, tensor, true, [&](View held, std::int64_t at) {
              file.move(pwrite, std::as_bytes(OnHost(held).as<float>()), at);
            });
          }
          file.sync();
        });
      }
      on_all_ranks([&] {
        if (comm.rank > 0) return;
        if (!model_.config.empty()) {
          const OpenFile file(partial + "/config.json", O_WRONLY | O_CREAT);
          file.move(pwrite, std::span(model_.config), 0);
          file.sync();
        }
        OpenFile(partial, O_RDONLY).sync();
        if (rename(partial.c_str(), path().c_str()) != 0) throw_errno(path());
        OpenFile(options.save, O_RDONLY).sync();
        std::set<std::int64_t> steps = steps_in(options.save);
        for (; std::ssize(steps) > options.keep; steps.erase(steps.begin())) {
          fs::remove_all(step_in(options.save, *steps.begin()), ignored);
        }
      });
      return "";
    } catch (const Error& error) {
      if (error.code == ExitCode::communication) throw;
      if (comm.rank == 0) fs::remove_all(partial, ignored);
      return error.what();
    }
  }

 private:
  void find_beginning() {
    const bool resumes = options.init.empty();
    const std::set<std::int64_t> steps = steps_in(source_);
    if (resumes && !steps.empty()) source_ = step_in(source_, *steps.rbegin());
    sources_ = files_in(source_);
    const bool may_be_tied = !resumes && check_folder(source_, model_.config, notes);
    if (!resumes) sources_ = {{source_, sources_[0].tensors}};
    for (TensorFile& file : sources_) file.read_header();
    if (resumes) {
      const json& told = sources_[0].metadata();
      const auto number = [&]<class Number>(const char* name, Number least, Number most) {
        const json& text = in(told, name);
        const auto is = read_number<Number>(text.is_string() ? std::string(text) : "");
        if (!is || !(least <= *is && *is <= most))
          throw_error(ExitCode::data, "{}: it has {} {}, which is no number from {} to {}",
                      sources_[0].path, name, shown(text), least, most);
        return *is;
      };
      constexpr std::int64_t zero = 0, most_steps = std::numeric_limits<int>::max();
      progress_.steps = number("step", zero, most_steps);
      progress_.updates = number("updates", zero, progress_.steps);
      progress_.loss_scale = number("loss_scale", double{FLT_TRUE_MIN}, double{FLT_MAX});
      // LossScale counts to 2000, then begins again.
      const std::int64_t most_good = std::min<std::int64_t>(progress_.updates, 1999);
      progress_.good_steps = static_cast<int>(number("good_steps", zero, most_good));
      json ours = metadata_of_run();
      for (const char* may_differ : {"lr", "beta1", "beta2", "eps", "weight_decay", "clip"}) {
        const json now = ours[may_differ], then = told.value(may_differ, now);  // old files lack it
        std::string note =
            fmt::format("{} {} in the checkpoint, {} now", may_differ, shown(then), shown(now));
        std::erase(note, '"');
        if (then != now) notes.push_back(note);
        ours.erase(may_differ);
      }
      for (TensorFile& file : sources_) compare(file.path, file.metadata(), ours);
    }
    for (TensorFile& file : sources_) file.find_tensors(may_be_tied);
    // Exit code 0 if nothing is left to do.
    const ExitCode code = progress_.steps > options.steps ? ExitCode::usage : ExitCode();
    if (progress_.steps >= options.steps)
      throw_error(code, "--steps {}: {} has made {} already", options.steps, source_,
                  progress_.steps);
    options.begin = progress_;
    loss_scale_ = LossScale(options);
  }

  void make_folder() const {
    const std::string& folder = options.save;
    std::error_code why;
    fs::create_directories(folder, why);
    if (bool(why)) throw_error(ExitCode::resources, "--save {}: {}", folder, why.message());
    if (access(folder.c_str(), W_OK) != 0) throw_errno("--save " + folder);
    const std::set<std::int64_t> steps = steps_in(folder);
    const std::int64_t last = steps.empty() ? 0 : *steps.rbegin();
    if (last > 0 && !fs::equivalent(step_in(folder, last), source_, why))
      throw_error(ExitCode::usage,
                  "--save {}: step {} is there, not resumed: --resume it, or name another folder",
                  folder, last);
  }

  std::vector<TensorFile> files_in(const std::string& folder) const {
    TensorFile model{folder + "/model.safetensors"}, optimizer{folder + "/optimizer.safetensors"};
    const auto add = [&](TensorFile& file, State state, const char* suffix) {
      for (int l = 0; l < layout.layers(); ++l) {
        std::int64_t start = 0;
        for (const Parameter& each : model_.layers[l]) {
          file.tensors.push_back({each.name + suffix, each.shape, state, l, start, each.size()});
          start += each.size();
        }
      }
    };
    add(model, State::master, "");
    add(optimizer, State::momentum, ".exp_avg"), add(optimizer, State::variance, ".exp_avg_sq");
    return {model, optimizer};
  }

  json metadata_of_run() const {
    json all{{"format", "pt"}, {"data", data.empty() ? "generated" : data}};
    // transformers wants the format. An MLP needs no shape: its width and layers say enough.
    if (!model_.config.empty()) all["shape"] = model_.description;
    const auto say = [&](const char* name, auto value) { all[name] = fmt::to_string(value); };
    say("dtype", name_of(options.dtype)), say("task", name_of(options.task));
    say("width", options.width), say("layers", options.layers), say("seed", options.seed);
    say("step", progress_.steps), say("updates", progress_.updates);
    say("loss_scale", progress_.loss_scale), say("good_steps", progress_.good_steps);
    say("lr", options.lr), say("beta1", options.beta1), say("beta2", options.beta2);
    say("eps", options.eps), say("weight_decay", options.weight_decay), say("clip", options.clip);
    return all;
  }

  /// Calls task(piece, its byte in the file) for pieces, to need little memory. own: pieces of this
  /// rank's fp32 shard of the tensor, to save it; else of all that the rank stores, to load it.
  void each_piece(const TensorFile& file, const StoredTensor& tensor, bool own, auto task) const {
    for (const Place place : every<Place>) {
      for (StateTensor* held : device.at(place).state_tensors()) {
        // The file's weights fill both the parameters and the master weights.
        const State state = held->state == State::parameters ? State::master : held->state;
        if (state != tensor.state || (own && held->view().dtype != Dtype::fp32)) continue;
        const View part = own ? held->shard(tensor.layer) : held->local(tensor.layer);
        const std::int64_t end = std::min(part.start + part.used, tensor.start + tensor.size);
        constexpr std::int64_t most = 16 << 10;  // elements
        for (std::int64_t at = std::max(part.start, tensor.start); at < end; at += most) {
          task(part.part(at - part.start, std::min(most, end - at)),
               file.header_bytes + tensor.begin + (at - tensor.start) * bytes_of(tensor.dtype));
        }
        if (own) return;
      }
    }
  }

  /// Returns the digest of each tensor over all ranks, named "digest NAME".
  json digests_of(const TensorFile& file) const {
    std::vector<std::uint64_t> mine(file.tensors.size());
    on_all_ranks([&] {  // a tensor on a disk may be unreadable
      for (std::size_t i = 0; i < mine.size(); ++i) {
        each_piece(file, file.tensors[i], true, [&](View held, std::int64_t) {
          const std::int64_t number = layout.first_parameter(held.layer) + held.start;
          mine[i] += digest(held, number);
        });
      }
    });
    const std::vector<std::uint64_t> all = comm.gather(mine);
    json digests;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      std::uint64_t sum = 0;
      for (std::size_t of = i; of < all.size(); of += mine.size()) sum += all[of];
      digests["digest " + file.tensors[i].name] = fmt::format("{:016x}", sum);
    }
    return digests;
  }

  const Architecture model_ = architecture(options);
  LossScale loss_scale_{options};  // changes as the trainer's loss scale does
  Progress progress_;
  std::string source_ = options.init.empty() ? options.resume : options.init;  // what load() reads
  std::vector<TensorFile> sources_;
};
}  // namespace

std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run) {
  return std::make_unique<StepFolders>(run);
}
}  // namespace zero
