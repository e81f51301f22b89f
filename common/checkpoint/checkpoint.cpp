// SPDX-License-Identifier: MIT
#include "checkpoint/checkpoint.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;
constexpr std::int64_t most_steps = std::int64_t{1} << 30;

std::vector<std::vector<StoredTensor>> tensors_of(const Architecture& model) {
  std::vector<std::vector<StoredTensor>> files(2);
  const auto add = [&](std::vector<StoredTensor>& file, State state, const char* suffix) {
    for (int l = 0; l < model.layers(); ++l) {
      const std::int64_t inputs = model.widths[l], outputs = model.widths[l + 1];
      const auto name = [&](const char* what) {
        return fmt::format("layers.{}.{}{}", l, what, suffix);
      };
      file.push_back({name("weight"), {outputs, inputs}, state, l, 0});
      if (model.bias) file.push_back({name("bias"), {outputs}, state, l, inputs * outputs});
    }
  };
  add(files[0], State::master, "");
  add(files[1], State::momentum, ".exp_avg");
  add(files[1], State::variance, ".exp_avg_sq");
  return files;
}

std::vector<std::string> paths_in(const std::string& checkpoint) {
  return {checkpoint + "/model.safetensors", checkpoint + "/optimizer.safetensors"};
}

/// The text's number in [least, most], or nothing.
template <class Number>
std::optional<Number> number_of(std::string_view text, Number least, Number most) {
  Number number{};
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  const bool good = error == std::errc() && end == text.end() && least <= number && number <= most;
  return good ? std::optional(number) : std::nullopt;
}

std::string step_in(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/step_{}", folder, step);
}

/// Of which there are checkpoints, in order.
std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step_")) continue;
    if (const auto step = number_of(name.substr(5), std::int64_t{1}, most_steps)) {
      steps.push_back(*step);
    }
  }
  std::ranges::sort(steps);
  return steps;
}

/// Throws Error (resources) in the system's words for a call that it has just refused.
void check_call(bool done, const std::string& path) {
  if (!done) throw Error(ExitCode::resources, fmt::format("{}: {}", path, std::strerror(errno)));
}

void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  const bool done = fsync(fd) == 0;
  close(fd);
  check_call(done, folder);
}
}  // namespace

Checkpoints::Checkpoints(const Options& options, const Layout& layout, Device& device,
                         Communicator& comm, const std::string& data, int threads,
                         Together together)
    : options_(options),
      layout_(layout),
      device_(device),
      comm_(comm),
      together_(std::move(together)),
      says_{{"format", "pt"},  // as PyTorch's own
            {"dtype", name_of(options.dtype)},
            {"task", name_of(options.task)},
            {"width", fmt::to_string(options.width)},
            {"layers", fmt::to_string(options.layers)},
            {"seed", fmt::to_string(options.seed)},
            {"data", data.empty() ? "generated" : data}},
      team_(threads),
      tensors_(tensors_of(architecture(options))),
      loss_scale_(options) {
  if (!options_.resume.empty() || !options_.init.empty()) find_beginning();
  if (!options_.save.empty()) take_folder();
}

void Checkpoints::find_beginning() {
  source_ = options_.resume.empty() ? options_.init : options_.resume;
  std::uint64_t newest = 0;  // in the folder that is named; 0: it is a checkpoint itself
  together_([&] {
    if (options_.resume.empty() || fs::exists(paths_in(source_)[0])) return;
    const std::vector<std::int64_t> steps = steps_in(source_);
    throw_if(steps.empty(), ExitCode::data, "--resume {}: there is no folder step_N", source_);
    newest = steps.back();
  });
  newest = comm_.gather({&newest, 1})[0];  // as rank 0 sees it
  if (newest > 0) source_ = step_in(source_, static_cast<std::int64_t>(newest));
  together_([&] { progress_ = read_headers(); });
  Options begun = options_;
  begun.begin = progress_;
  loss_scale_ = LossScale(begun);
}

Progress Checkpoints::read_headers() {
  const bool resumes = options_.init.empty();
  sources_ = open(resumes ? paths_in(source_) : std::vector{source_}, "rb");
  Metadata found;
  const auto check = [&](const Metadata& here) {
    throw_if(!found.empty() && found != here, ExitCode::data,
             "{}: its files are of two checkpoints", source_);
    found = here;
    for (const auto& [name, ours] : says_) {
      throw_if(resumes && found[name] != ours, ExitCode::data,
               "--resume {}: its run has {} \"{:.80}\", this one \"{}\"", source_, name,
               found[name], ours);
    }
  };
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const auto& [path, file] = sources_[i];
    read_header(fileno(file.get()), path, tensors_[i], check);
  }
  if (!resumes) return {};
  const auto number = [&](const char* name, auto least, auto most) {
    const auto value = number_of(found[name], least, most);
    throw_if(!value, ExitCode::data, "{}: its {} is \"{:.40}\", not from {} to {}", source_, name,
             found[name], least, most);
    return *value;
  };
  const auto steps = number("step", std::int64_t{1}, most_steps);
  constexpr ExitCode nothing_to_do{};
  throw_if(steps == options_.steps, nothing_to_do, "{} has made all {} steps", source_, steps);
  throw_if(steps > options_.steps, ExitCode::usage, "--steps {}: {} has made {} already",
           options_.steps, source_, steps);
  return {steps, number("updates", std::int64_t{0}, steps), number("loss_scale", FLT_MIN, FLT_MAX),
          number("good_steps", 0, 2000)};
}

void Checkpoints::take_folder() {
  const std::string& folder = options_.save;
  const std::string lock = folder + "/.lock";
  const auto locks = [&](const char* mode) {
    lock_.reset(std::fopen(lock.c_str(), mode));
    return lock_ && flock(fileno(lock_.get()), LOCK_EX | LOCK_NB) == 0;
  };
  together_([&] {
    if (comm_.rank > 0) return;
    std::error_code why;
    fs::create_directories(folder, why);
    const bool taken = locks("a");
    check_call(lock_ != nullptr, lock);
    throw_if(!taken, ExitCode::usage, "--save {}: another run saves there", folder);
    const std::vector<std::int64_t> steps = steps_in(folder);
    throw_if(!steps.empty() && !fs::equivalent(step_in(folder, steps.back()), source_, why),
             ExitCode::usage,
             "--save {}: step {} of another run is there: --resume it, or name another folder",
             folder, steps.back());
  });
  together_([&] {
    throw_if(comm_.rank > 0 && (locks("r+") || !lock_), ExitCode::usage,
             "--save {}: it is another folder than rank 0's: give all ranks one", folder);
  });
}

std::string Checkpoints::load() {
  if (sources_.empty()) return "";
  const std::vector<std::vector<StoredTensor>> said = tensors_;
  move(Move::read, sources_);
  together_([&] {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      for (std::size_t t = 0; t < said[i].size(); ++t) {
        const std::string &digest = said[i][t].digest, &found = tensors_[i][t].digest;
        const bool foreign = digest.empty() && options_.resume.empty();  // written by others
        throw_if(digest != found && !foreign, ExitCode::data,
                 "{}: {} has digest {}, and should have \"{:.40}\": it is not what was saved",
                 sources_[i].first, said[i][t].name, found, digest);
      }
    }
  });
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

std::string Checkpoints::save() try {
  const std::string partial = path() + ".partial";
  const bool first = comm_.rank == 0;
  says_["step"] = fmt::to_string(progress_.steps);
  says_["updates"] = fmt::to_string(progress_.updates);
  says_["loss_scale"] = fmt::to_string(progress_.loss_scale);
  says_["good_steps"] = fmt::to_string(progress_.good_steps);
  add_digests({});  // no elements' yet: they are of one length
  for (auto& tensors : tensors_) write_header(tensors, says_);  // says where they begin
  together_([&] {
    if (!first) return;
    std::error_code none;
    for (const auto& left : fs::directory_iterator(options_.save, none)) {  // by who was killed
      if (left.path().extension() == ".partial") fs::remove_all(left.path(), none);
    }
    check_call(mkdir(partial.c_str(), 0777) == 0, partial);
    open(paths_in(partial), "wb");
  });
  Files files;
  together_([&] { files = open(paths_in(partial), "r+b"); });
  move(Move::write, files);
  together_([&] {
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto& [path, file] = files[i];
      const std::string header = write_header(tensors_[i], says_);
      if (first) std::fwrite(header.data(), 1, header.size(), file.get());
      check_call(std::fflush(file.get()) == 0, path);
      // It begins now, while the file is checked.
      sync_file_range(fileno(file.get()), 0, 0, SYNC_FILE_RANGE_WRITE);
    }
  });
  move(Move::check, files);
  together_([&] {
    for (const auto& [path, file] : files) check_call(fsync(fileno(file.get())) == 0, path);
  });
  together_([&] {
    if (!first) return;
    sync_folder(partial);
    check_call(rename(partial.c_str(), path().c_str()) == 0, path());
    sync_folder(options_.save);
    const std::vector<std::int64_t> steps = steps_in(options_.save);
    std::error_code none;
    for (std::size_t i = 0; i + options_.keep < steps.size(); ++i) {
      fs::remove_all(step_in(options_.save, steps[i]), none);
    }
  });
  return "";
} catch (const Error& error) {
  if (error.code != ExitCode::resources) throw;
  failed_ = true;
  std::error_code none;
  if (comm_.rank == 0) fs::remove_all(path() + ".partial", none);
  return error.what();
}

Checkpoints::Files Checkpoints::open(const std::vector<std::string>& paths, const char* mode) {
  Files files;
  for (const std::string& path : paths) {
    std::error_code none;  // a pipe that nobody writes would be waited for
    throw_if(mode[0] == 'r' && !fs::is_regular_file(path, none), ExitCode::data,
             "cannot read {}: it is no file", path);
    files.emplace_back(path, File(std::fopen(path.c_str(), mode), std::fclose));
    check_call(files.back().second != nullptr, path);
  }
  return files;
}

void Checkpoints::move(Move how, const Files& files) {
  std::vector<const Holding*> holdings = device_.holdings;
  const std::vector<const Holding*>& on_host = device_.host().holdings;
  holdings.insert(holdings.end(), on_host.begin(), on_host.end());
  const auto is_master = [](const Holding* held) { return held->state == State::master; };
  const bool has_master = std::ranges::any_of(holdings, is_master);
  std::vector<std::uint64_t> digests;
  const auto move_tensor = [&](const std::string& path, int fd, const StoredTensor& tensor,
                               std::byte* staging) {
    std::uint64_t digest = 0;
    const int l = tensor.layer;
    for (const Holding* held : holdings) {
      // Parameters are their own master, or a copy of it.
      const bool copy = held->state == State::parameters && tensor.state == State::master;
      const bool original = held->state == tensor.state || (copy && !has_master);
      if (!original && !(copy && how == Move::read)) continue;
      const View all = how == Move::read ? held->held(l) : held->shard(l);
      for (std::int64_t at = 0; at < all.size; at += layout_.shard_size(l)) {
        const View part = all.part(at, layout_.shard_size(l));
        const std::uint64_t moved =
            move_part(how, fd, path, tensor, part, layout_.first_parameter(l), staging, team_);
        if (original && part.start == layout_.shard_start(l)) digest = moved;
      }
    }
    return digest;
  };
  together_([&] {
    std::optional<Buffer> staging;
    const std::int64_t room = layout_.largest_layer() / layout_.ranks() * sizeof(float);
    if (device_.type == DeviceType::cuda) staging.emplace(device_.host(), room);
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto& [path, file] = files[i];
      for (const StoredTensor& tensor : tensors_[i]) {
        digests.push_back(
            move_tensor(path, fileno(file.get()), tensor, staging ? staging->data() : nullptr));
      }
    }
  });
  if (how != Move::check) add_digests(digests);
}

void Checkpoints::add_digests(std::span<const std::uint64_t> mine) {
  const std::vector<std::uint64_t> all = comm_.gather(mine);
  std::size_t number = 0;
  for (auto& tensors : tensors_) {
    for (StoredTensor& tensor : tensors) {
      std::uint64_t sum = 0;
      for (std::size_t at = number++; at < all.size(); at += mine.size()) sum += all[at];
      tensor.digest = fmt::format("{:016x}", sum);
    }
  }
}
}  // namespace zero
