// SPDX-License-Identifier: MIT
#include "checkpoint/checkpoint.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

std::string step_in(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/step_{}", folder, step);
}

/// Of which there are checkpoints, in order.
std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code ends;
  for (fs::directory_iterator at(folder, ends); !ends && at != fs::end(at); at.increment(ends)) {
    unsigned long step = 0;
    const std::string name = at->path().filename();
    std::sscanf(name.c_str(), "step_%lu", &step);
    if (name == fmt::format("step_{}", step)) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

/// Throws Error (resources) in the system's words for a call that it has just refused.
void check_call(bool done, const std::string& path) {
  if (!done) throw Error(ExitCode::resources, fmt::format("{}: {}", path, std::strerror(errno)));
}

std::shared_ptr<std::FILE> open(const std::string& path, const char* mode) {
  std::FILE* const file = std::fopen(path.c_str(), mode);
  check_call(file != nullptr, path);
  return {file, std::fclose};
}

void sync(const std::string& path) { check_call(fsync(fileno(open(path, "r").get())) == 0, path); }
}  // namespace

Checkpoints::Checkpoints(Options& options, const Layout& layout, Device& device, Communicator& comm,
                         const std::string& data, int threads, Together together)
    : options_(options),
      layout_(layout),
      device_(device),
      comm_(comm),
      data_(data.empty() ? "generated" : data),
      team_(threads),
      together_(std::move(together)),
      loss_scale_(options),
      source_(options.init.empty() ? options.resume : options.init) {
  if (!source_.empty()) find_beginning();
  if (!options_.save.empty()) take_folder();
}

std::vector<Checkpoints::TensorFile> Checkpoints::files_in(const std::string& checkpoint) const {
  const Architecture model = architecture(options_);
  std::vector<TensorFile> files{{checkpoint + "/model.safetensors"},
                                {checkpoint + "/optimizer.safetensors"}};
  const std::tuple<int, State, const char*> saved[] = {{0, State::master, ""},
                                                       {1, State::momentum, ".exp_avg"},
                                                       {1, State::variance, ".exp_avg_sq"}};
  for (const auto& [file, state, suffix] : saved) {
    std::vector<StoredTensor>& tensors = files[file].tensors;
    for (int l = 0; l < model.layers(); ++l) {
      const std::int64_t inputs = model.widths[l], outputs = model.widths[l + 1];
      const std::string layer = fmt::format("layers.{}.", l);
      tensors.push_back({layer + "weight" + suffix, {outputs, inputs}, state, l, 0});
      if (!model.bias) continue;
      tensors.push_back({layer + "bias" + suffix, {outputs}, state, l, inputs * outputs});
    }
  }
  return files;
}

Metadata Checkpoints::says() const {
  return {{"format", "pt"},  // as PyTorch's own
          {"dtype", name_of(options_.dtype)},
          {"task", name_of(options_.task)},
          {"width", fmt::to_string(options_.width)},
          {"layers", fmt::to_string(options_.layers)},
          {"seed", fmt::to_string(options_.seed)},
          {"data", data_},
          {"step", fmt::to_string(progress_.steps)},
          {"updates", fmt::to_string(progress_.updates)},
          {"loss_scale", fmt::to_string(progress_.loss_scale)},
          {"good_steps", fmt::to_string(progress_.good_steps)}};
}

void Checkpoints::check(const std::string& path, Metadata found) {
  const auto number = [&](const char* name, double least, double most) {
    const double value = std::strtod(found[name].c_str(), nullptr);
    throw_if(!(least <= value && value <= most), ExitCode::data,
             "{}: its {} is \"{:.40}\", not from {} to {}", path, name, found[name], least, most);
    return value;
  };
  if (progress_.steps == 0) {  // the first file, as which the second is to be
    progress_.steps = number("step", 1, 1 << 30);
    progress_.updates = number("updates", 0, progress_.steps);
    progress_.loss_scale = number("loss_scale", FLT_MIN, FLT_MAX);
    progress_.good_steps = number("good_steps", 0, 2000);
  }
  for (const auto& [name, ours] : says()) {
    throw_if(found[name] != ours, ExitCode::data,
             "{}: its run has {} \"{:.80}\", this one \"{:.80}\"", path, name, found[name], ours);
  }
}

void Checkpoints::find_beginning() {
  const bool resumes = options_.init.empty();
  std::error_code none;
  together_([&] {
    if (!resumes || fs::exists(files_in(source_)[0].path, none)) return;
    const std::vector<std::int64_t> steps = steps_in(source_);
    throw_if(steps.empty(), ExitCode::data, "--resume {}: there is no folder step_N", source_);
    source_ = step_in(source_, steps.back());
  });
  source_ = comm_.gather_texts(source_)[0];  // as rank 0 sees it
  together_([&] {
    sources_ = files_in(source_);
    if (!resumes) sources_ = {{source_, sources_[0].tensors}};
    for (auto& [path, tensors, file] : sources_) {
      throw_if(!fs::is_regular_file(path, none), ExitCode::data,  // a pipe would be waited for
               "cannot read {}: it is no file", path);
      file = open(path, "rb");
      read_header(fileno(file.get()), path, tensors, [&](const Metadata& found) {
        if (resumes) check(path, found);
      });
    }
    const std::int64_t steps = progress_.steps;
    constexpr ExitCode nothing_to_do{};
    throw_if(steps == options_.steps, nothing_to_do, "{} has made all {} steps", source_, steps);
    throw_if(steps > options_.steps, ExitCode::usage, "--steps {}: {} has made {} already",
             options_.steps, source_, steps);
  });
  options_.begin = progress_;
  loss_scale_ = LossScale(options_);
}

void Checkpoints::take_folder() {
  const std::string& folder = options_.save;
  const auto lock = [&] {
    lock_ = open(folder + "/.lock", "a");
    const bool done = flock(fileno(lock_.get()), LOCK_EX | LOCK_NB) == 0;
    check_call(done || errno == EWOULDBLOCK, folder);
    return done;
  };
  together_([&] {
    if (comm_.rank > 0) return;
    std::error_code why;
    fs::create_directories(folder, why);
    throw_if(bool(why), ExitCode::resources, "--save {}: {}", folder, why.message());
    throw_if(!lock(), ExitCode::usage, "--save {}: another run saves there", folder);
    const std::vector<std::int64_t> steps = steps_in(folder);
    const std::int64_t last = steps.empty() ? 0 : steps.back();
    throw_if(last > 0 && !fs::equivalent(step_in(folder, last), source_, why), ExitCode::usage,
             "--save {}: step {} is there, and not resumed: --resume it, or name another folder",
             folder, last);
  });
  together_([&] {
    throw_if(comm_.rank > 0 && lock(), ExitCode::usage,
             "--save {}: it is another folder than rank 0's: give all ranks one", folder);
  });
}

std::string Checkpoints::load() {
  for (TensorFile& file : sources_) move(Move::read, file);
  sources_.clear();
  return source_;
}

bool Checkpoints::passed(const Verdict& step) {
  loss_scale_.update(step.skipped);
  progress_ = {progress_.steps + 1, progress_.updates + !step.skipped, loss_scale_.value(),
               loss_scale_.good_steps()};
  if (options_.save.empty()) return false;
  const bool due = options_.save_every > 0 && progress_.steps % options_.save_every == 0;
  return due || progress_.steps == options_.steps;
}

std::string Checkpoints::path() const { return step_in(options_.save, progress_.steps); }

std::string Checkpoints::save() {
  const std::string partial = options_.save + "/step.partial";
  const bool first = comm_.rank == 0;
  std::error_code none;
  try {
    together_([&] {
      if (!first) return;
      fs::remove_all(partial, none);  // of a run that was killed
      check_call(mkdir(partial.c_str(), 0777) == 0, partial);
    });
    std::vector<TensorFile> files = files_in(partial);
    for (TensorFile& file : files) {
      write_header(file.tensors, says());  // as long as it will be with the digests
      together_([&] { file.file = open(file.path, "w+b"); });
      move(Move::write, file);
    }
    for (TensorFile& file : files) move(Move::check, file);
    together_([&] {
      for (TensorFile& file : files) {
        const std::string header = write_header(file.tensors, says());
        const auto fd = fileno(file.file.get());
        const auto all = std::ssize(header);
        errno = ENOSPC;  // where a part of it is written
        check_call(!first || pwrite(fd, header.data(), all, 0) == all, file.path);
        sync(file.path);
      }
    });
    together_([&] {
      if (!first) return;
      sync(partial);
      check_call(rename(partial.c_str(), path().c_str()) == 0, path());
      sync(options_.save);
      const std::vector<std::int64_t> steps = steps_in(options_.save);
      for (std::size_t i = 0; i + options_.keep < steps.size(); ++i) {
        fs::remove_all(step_in(options_.save, steps[i]), none);
      }
    });
    return "";
  } catch (const Error& error) {
    if (error.code == ExitCode::communication) throw;
    if (first) fs::remove_all(partial, none);
    failed_ = true;
    return error.what();
  }
}

std::vector<View> Checkpoints::parts_of(const StoredTensor& tensor, Move how) const {
  std::vector<View> parts;
  for (Device* const place : {&device_, &device_.host()}) {
    for (const Holding* held : place->holdings) {
      // Weights are what lies in fp32, parameters or their master; others are copies of them.
      const State state = held->state == State::parameters ? State::master : held->state;
      if (state != tensor.state) continue;
      if (how == Move::read) {
        const View all = held->held(tensor.layer);
        const std::int64_t size = layout_.shard_size(tensor.layer);
        for (std::int64_t at = 0; at < all.size; at += size) parts.push_back(all.part(at, size));
      } else if (held->view().dtype == Dtype::fp32) {
        return {held->shard(tensor.layer)};
      }
    }
  }
  return parts;
}

void Checkpoints::move(Move how, TensorFile& file) {
  std::vector<std::uint64_t> mine;
  together_([&] {
    std::optional<Buffer> staging;
    const std::int64_t room = layout_.largest_layer() / layout_.ranks() * sizeof(float);
    if (device_.type == DeviceType::cuda) staging.emplace(device_.host(), room);
    for (const StoredTensor& tensor : file.tensors) {
      mine.push_back(0);
      for (const View& part : parts_of(tensor, how)) {
        const std::uint64_t digest = move_part(how, fileno(file.file.get()), file.path, tensor,
                                               part, layout_.first_parameter(tensor.layer),
                                               staging ? staging->data() : nullptr, team_);
        if (part.start == layout_.shard_start(tensor.layer)) mine.back() = digest;
      }
    }
  });
  if (how == Move::write) return;
  const std::vector<std::uint64_t> all = comm_.gather(mine);
  together_([&] {
    for (std::size_t t = 0; t < mine.size(); ++t) {
      std::uint64_t sum = 0;
      for (std::size_t at = t; at < all.size(); at += mine.size()) sum += all[at];
      const std::string digest = fmt::format("{:016x}", sum);
      std::string& said = file.tensors[t].digest;
      const bool foreign = said.empty() && options_.resume.empty();  // others wrote it
      if (how == Move::check || foreign) said = digest;
      throw_if(said != digest, ExitCode::data,
               "{}: {} has digest {}, and should have \"{:.40}\": it is not what was saved",
               file.path, file.tensors[t].name, digest, said);
    }
  });
}
}  // namespace zero
