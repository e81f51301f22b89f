// SPDX-License-Identifier: MIT
#include "checkpoint/checkpoint.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "checkpoint/safetensors.hpp"
#include "compute/cpu/matmul.hpp"
#include "compute/generator.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

std::string step_in(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/step_{}", folder, step);
}

/// Of which there are checkpoints.
std::set<std::int64_t> steps_in(const std::string& folder) {
  std::set<std::int64_t> steps;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    std::int64_t step = 0;
    std::sscanf(entry.path().filename().c_str(), "step_%ld", &step);
    if (entry.path() == step_in(folder, step)) steps.insert(step);
  }
  return steps;
}

/// Throws Error (data) if a file says something else than this run.
void compare(const std::string& path, const Json& found, const Json& ours) {
  for (const auto& [name, value] : ours.items()) {
    const std::string theirs = found.value(name, Json()).dump(), here = value.dump();
    throw_if(theirs != here, ExitCode::data, "{}: it has {} {:.80}, this run {:.80}", path, name,
             theirs, here);
  }
}

/// The same, of what lies beside a file of --init; or this is a part of a model.
void check_folder(const std::string& source, const std::string& config) {
  const fs::path folder = fs::path(source).parent_path(), path = folder / "config.json";
  const fs::path whole = folder / "model.safetensors", index = whole.string() + ".index.json";
  throw_if(source == index || (fs::exists(index) && !fs::exists(whole)), ExitCode::data,
           "--init {}: its model is in several files, which {} lists", source, index.string());
  if (config.empty() || !fs::exists(path)) return;
  Json ours = Json::parse(config), found = ours;
  const Json theirs = Json::parse(std::ifstream(path));
  found.update(theirs);
  // In which transformers has rope_theta since its version 5.
  found.update(theirs.value("rope_parameters", Json::object()));
  found["num_attention_heads"] = theirs.value("num_attention_heads", Json());  // no shape tells it
  ours.update({{"rope_scaling", nullptr}, {"rope_type", "default"}});
  for (const char* free :
       {"architectures", "dtype", "max_position_embeddings", "bos_token_id", "eos_token_id"}) {
    ours.erase(free);
  }
  compare(path, found, ours);
}

/// Fills the view, in its dtype, with elements of `dtype` that the file has from `at` on.
void read(const File& file, std::int64_t at, Dtype dtype, View to) {
  with_type(dtype, [&]<class Stored>(Stored) {
    with_type(to.dtype, [&]<class Held>(Held) {
      std::vector<Stored> stored(to.size);
      file.move(pread, std::as_writable_bytes(std::span(stored)), at);
      std::vector<Held> held;
      for (const Stored x : stored) held.push_back(narrow<Held>(widen(x)));
      to.device->copy(to.data, held.data(), to.bytes());
    });
  });
}

class StepFolders : public Checkpoints, Saved {
 public:
  explicit StepFolders(const Saved& run) : Saved(run) {
    together([&] {
      if (!source_.empty()) find_beginning();
      if (!options.save.empty()) make_folder();
    });
  }

  std::string load() override {
    for (TensorFile& from : sources_) {
      together([&] {
        const File file(from.path, O_RDONLY);
        for (const StoredTensor& tensor : from.tensors) {
          each_piece(tensor, false,
                     [&](View piece, std::int64_t at) { read(file, at, tensor.dtype, piece); });
        }
      });
      const Json digests = digests_of(from);
      Json said = options.init.empty() ? Json() : digests;  // others' files have none
      said.update(from.metadata);
      together([&] { compare(from.path, said, digests); });
    }
    return source_;
  }

  bool passed(const StepResult& step) override {
    loss_scale_.update(step.skipped);
    progress_ = {progress_.steps + 1, progress_.updates + !step.skipped, loss_scale_.value(),
                 loss_scale_.good_steps()};
    const bool due = options.save_every > 0 && progress_.steps % options.save_every == 0;
    return !options.save.empty() && (due || progress_.steps == options.steps);
  }

  std::string path() const override { return step_in(options.save, progress_.steps); }

  std::string save() override {
    const std::string partial = options.save + "/step.partial";
    std::error_code none;
    try {
      together([&] {
        if (comm.rank > 0) return;
        fs::remove_all(partial, none);  // of a run that was killed
        check_call(mkdir(partial.c_str(), 0777) == 0, partial);
      });
      for (TensorFile& to : files_in(partial)) {
        to.metadata = says();
        to.metadata.update(digests_of(to));
        const std::string header = to.make_header();
        together([&] {
          const File file(to.path, O_WRONLY | O_CREAT);
          if (comm.rank == 0) file.move(pwrite, std::span(header), 0);
          for (const StoredTensor& tensor : to.tensors) {
            each_piece(tensor, true, [&](View piece, std::int64_t at) {
              file.move(pwrite, std::as_bytes(OnHost(piece).as<float>()), at);
            });
          }
          file.sync();
        });
      }
      together([&] {
        if (comm.rank > 0) return;
        if (!model_.config.empty()) {
          const File file(partial + "/config.json", O_WRONLY | O_CREAT);
          file.move(pwrite, std::span(model_.config), 0);
          file.sync();
        }
        File(partial, O_RDONLY).sync();
        check_call(rename(partial.c_str(), path().c_str()) == 0, path());
        File(options.save, O_RDONLY).sync();
        std::set<std::int64_t> steps = steps_in(options.save);
        for (; std::ssize(steps) > options.keep; steps.erase(steps.begin())) {
          fs::remove_all(step_in(options.save, *steps.begin()), none);
        }
      });
      return "";
    } catch (const Error& error) {
      if (error.code == ExitCode::communication) throw;
      if (comm.rank == 0) fs::remove_all(partial, none);
      return error.what();
    }
  }

 private:
  void find_beginning() try {
    const bool resumes = options.init.empty();
    if (resumes && !fs::exists(files_in(source_)[0].path)) {
      const std::set<std::int64_t> steps = steps_in(source_);
      throw_if(steps.empty(), ExitCode::data, "--resume {}: there is no folder step_N", source_);
      source_ = step_in(source_, *steps.rbegin());
    }
    sources_ = files_in(source_);
    if (!resumes) {
      check_folder(source_, model_.config);
      sources_ = {{source_, sources_[0].tensors}};
    }
    for (TensorFile& file : sources_) {
      throw_if(!fs::is_regular_file(file.path), ExitCode::data, "cannot read {}: it is no file",
               file.path);  // a pipe would be waited for
      file.read_header([&] {
        if (resumes) check(file);
      });
    }
    const std::int64_t steps = progress_.steps;
    const ExitCode code = steps > options.steps ? ExitCode::usage : ExitCode();  // nothing to do
    throw_if(steps >= options.steps, code, "--steps {}: {} has made {} already", options.steps,
             source_, steps);
    options.begin = progress_;
    loss_scale_ = LossScale(options);
  } catch (const Json::exception& error) {
    throw_if(true, ExitCode::data, "{}: what it says is none of this model: {:.100}", source_,
             error.what());
  }

  void make_folder() const {
    const std::string& folder = options.save;
    std::error_code why;
    fs::create_directories(folder, why);
    throw_if(bool(why), ExitCode::resources, "--save {}: {}", folder, why.message());
    check_call(access(folder.c_str(), W_OK) == 0, "--save " + folder);
    const std::set<std::int64_t> steps = steps_in(folder);
    const std::int64_t last = steps.empty() ? 0 : *steps.rbegin();
    throw_if(last > 0 && !fs::equivalent(step_in(folder, last), source_, why), ExitCode::usage,
             "--save {}: step {} is there, and not resumed: --resume it, or name another folder",
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

  /// What every header says: which run it is of, and how far it has come.
  Json says() const {
    Json all{{"format", "pt"}, {"data", data.empty() ? "generated" : data}};
    if (!model_.config.empty()) all["shape"] = model_.words;  // of others width and layers say it
    const auto say = [&](const char* name, auto value) { all[name] = fmt::to_string(value); };
    say("dtype", name_of(options.dtype)), say("task", name_of(options.task));
    say("width", options.width), say("layers", options.layers), say("seed", options.seed);
    say("step", progress_.steps), say("updates", progress_.updates);
    say("loss_scale", progress_.loss_scale), say("good_steps", progress_.good_steps);
    return all;
  }

  /// Throws Error (data) unless a header says the same; a run's first header sets progress.
  void check(const TensorFile& file) {
    const auto number = [&](const char* name) {
      return std::atof(file.metadata.value(name, "").c_str());
    };
    if (progress_.steps == 0) {
      progress_.steps = number("step"), progress_.updates = number("updates");
      progress_.loss_scale = number("loss_scale"), progress_.good_steps = number("good_steps");
    }
    compare(file.path, file.metadata, says());
  }

  /// Calls task(view, its place in the file) for what this rank holds of the tensor, in whatever
  /// dtype; own: for the part that it answers for, in fp32. In pieces: nobody needs room for more.
  void each_piece(const StoredTensor& tensor, bool own, auto task) const {
    constexpr std::int64_t most = 256 << 10;  // elements
    for (const Device* place : {&device, &device.host()}) {
      for (const Holding* held : place->holdings) {
        // Weights are parameters and their master.
        const State state = held->state == State::parameters ? State::master : held->state;
        if (state != tensor.state || (own && held->view().dtype != Dtype::fp32)) continue;
        const View all = own ? held->shard(tensor.layer) : held->held(tensor.layer);
        const std::int64_t end = std::min(all.start + all.used, tensor.start + tensor.size);
        for (std::int64_t at = std::max(all.start, tensor.start); at < end; at += most) {
          task(all.part(at - all.start, std::min(most, end - at)),
               tensor.begin + (at - tensor.start) * bytes_of(tensor.dtype));
        }
        if (own) return;
      }
    }
  }

  /// By "digest NAME", over all ranks.
  Json digests_of(const TensorFile& file) const {
    Json digests;
    for (const StoredTensor& tensor : file.tensors) {
      std::uint64_t mine = 0, sum = 0;
      each_piece(tensor, true, [&](View piece, std::int64_t) {
        const OnHost host(piece);
        const std::int64_t number = layout.first_parameter(piece.layer) + piece.start;
        on_wide_vectors([&] { mine += digest(host.as<float>(), number); });
      });
      for (const std::uint64_t each : comm.gather({&mine, 1})) sum += each;
      digests["digest " + tensor.name] = fmt::format("{:016x}", sum);
    }
    return digests;
  }

  const Architecture model_ = architecture(options);
  LossScale loss_scale_{options};  // as the trainer's own
  Progress progress_;
  std::string source_ = options.init.empty() ? options.resume : options.init;  // what is loaded
  std::vector<TensorFile> sources_;
};
}  // namespace

std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run) {
  return std::make_unique<StepFolders>(run);
}
}  // namespace zero
