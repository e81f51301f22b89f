// SPDX-License-Identifier: MIT
#include "checkpoint/checkpoint.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors.hpp"
#include "compute/cpu/matmul.hpp"
#include "compute/cpu/team.hpp"
#include "compute/generator.hpp"
#include "memory/throw_if.hpp"
#include "train/model.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

/// check: what the file holds is to be what memory does.
enum class Move { write, check, read };
constexpr int differs = -1;  // beside errno's

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

/// Calls pread or pwrite until all bytes are moved. False: errno says why not.
bool move_all(auto call, int fd, std::byte* data, std::int64_t bytes, std::int64_t at) {
  while (bytes > 0) {
    errno = ENODATA;  // where nothing is left to read
    const std::int64_t moved = call(fd, data, bytes, at);
    if (moved <= 0) return false;
    data += moved, bytes -= moved, at += moved;
  }
  return true;
}

class StepFolders : public Checkpoints, Saved {
 public:
  explicit StepFolders(const Saved& run) : Saved(run) {
    if (!source_.empty()) find_beginning();
    if (!options.save.empty()) take_folder();
  }

  std::string load() override {
    for (TensorFile& file : sources_) move(Move::read, file);
    sources_.clear();
    return source_;
  }

  bool passed(const StepResult& step) override {
    loss_scale_.update(step.skipped);
    progress_ = {progress_.steps + 1, progress_.updates + !step.skipped, loss_scale_.value(),
                 loss_scale_.good_steps()};
    if (options.save.empty()) return false;
    const bool due = options.save_every > 0 && progress_.steps % options.save_every == 0;
    return due || progress_.steps == options.steps;
  }

  std::string path() const override { return step_in(options.save, progress_.steps); }

  std::string save() override {
    const std::string partial = options.save + "/step.partial";
    const bool first = comm.rank == 0;
    std::error_code none;
    try {
      together([&] {
        if (!first) return;
        fs::remove_all(partial, none);  // of a run that was killed
        check_call(mkdir(partial.c_str(), 0777) == 0, partial);
      });
      std::vector<TensorFile> files = files_in(partial);
      for (TensorFile& file : files) {
        file.make_header(says());  // where tensors begin: it is as long as with the digests
        together([&] { file.file = open(file.path, "w+b"); });
        move(Move::write, file);
      }
      for (TensorFile& file : files) move(Move::check, file);
      together([&] {
        for (TensorFile& file : files) {
          const std::string header = file.make_header(says());
          const auto all = std::ssize(header);
          errno = ENOSPC;  // where a part of it is written
          check_call(!first || pwrite(file.fd(), header.data(), all, 0) == all, file.path);
          sync(file.path);
        }
      });
      together([&] {
        if (!first) return;
        if (const std::string config = architecture(options).config; !config.empty()) {
          const std::string path = partial + "/config.json";
          const auto file = open(path, "w");
          check_call(std::fputs(config.c_str(), file.get()) >= 0 && std::fflush(file.get()) == 0,
                     path);
          sync(path);
        }
        sync(partial);
        check_call(rename(partial.c_str(), path().c_str()) == 0, path());
        sync(options.save);
        const std::vector<std::int64_t> steps = steps_in(options.save);
        for (std::size_t i = 0; i + options.keep < steps.size(); ++i) {
          fs::remove_all(step_in(options.save, steps[i]), none);
        }
      });
      return "";
    } catch (const Error& error) {
      if (error.code == ExitCode::communication) throw;
      if (first) fs::remove_all(partial, none);
      return error.what();
    }
  }

 private:
  void find_beginning() {
    const bool resumes = options.init.empty();
    std::error_code none;
    together([&] {
      if (!resumes || fs::exists(files_in(source_)[0].path, none)) return;
      const std::vector<std::int64_t> steps = steps_in(source_);
      throw_if(steps.empty(), ExitCode::data, "--resume {}: there is no folder step_N", source_);
      source_ = step_in(source_, steps.back());
    });
    source_ = comm.gather_texts(source_)[0];  // as rank 0 sees it
    together([&] {
      sources_ = files_in(source_);
      if (!resumes) {
        check_folder();
        sources_ = {{source_, sources_[0].tensors}};
      }
      for (TensorFile& file : sources_) {
        throw_if(!fs::is_regular_file(file.path, none), ExitCode::data,
                 "cannot read {}: it is no file", file.path);  // a pipe would be waited for
        file.file = open(file.path, "rb");
        file.read_header([&](const Metadata& found) {
          if (resumes) check(file.path, found);
        });
      }
      const std::int64_t steps = progress_.steps;
      constexpr ExitCode nothing_to_do{};
      throw_if(steps == options.steps, nothing_to_do, "{} has made all {} steps", source_, steps);
      throw_if(steps > options.steps, ExitCode::usage, "--steps {}: {} has made {} already",
               options.steps, source_, steps);
    });
    options.begin = progress_;
    loss_scale_ = LossScale(options);
  }

  /// Throws Error (data) when what lies beside the file of --init says that it is another model's,
  /// or a part of one.
  void check_folder() const {
    const fs::path folder = fs::path(source_).parent_path(), path = folder / "config.json";
    const fs::path index = folder / "model.safetensors.index.json";
    std::error_code none;
    const bool parts = fs::exists(index, none) && !fs::exists(folder / "model.safetensors", none);
    throw_if(parts || source_.ends_with(".index.json"), ExitCode::data,
             "--init {}: its model is in several files, which {} lists; --init reads one with all",
             source_, index.string());
    using Json = TensorFile::Json;
    const std::string config = architecture(options).config;
    if (config.empty() || !fs::is_regular_file(path, none)) return;
    const auto flat = [](int depth, auto, auto&) { return depth < 4; };  // deeper ones are left out
    Json found = Json::parse(std::ifstream(path), flat, false), ours = Json::parse(config);
    throw_if(!found.is_object() || !found.contains("num_attention_heads"), ExitCode::data,
             "{} is no object of JSON with num_attention_heads", path.string());
    // In which transformers has rope_theta since its version 5. Another type turns otherwise.
    if (const Json turns = found.value("rope_parameters", Json()); turns.is_object()) {
      found.update(turns);
    }
    ours.update({{"rope_scaling", nullptr}, {"rope_type", "default"}});
    for (const char* name :
         {"architectures", "dtype", "max_position_embeddings", "bos_token_id", "eos_token_id"}) {
      ours.erase(name);
    }
    for (const auto& [name, value] : ours.items()) {
      const Json theirs = found.value(name, value);
      throw_if(theirs != value, ExitCode::data, "{}: its model has {} {:.80}, this run's {}",
               path.string(), name, theirs.dump(), value.dump());
    }
  }

  void take_folder() {
    const std::string& folder = options.save;
    const auto lock = [&] {
      lock_ = open(folder + "/.lock", "a");
      const bool done = flock(fileno(lock_.get()), LOCK_EX | LOCK_NB) == 0;
      check_call(done || errno == EWOULDBLOCK, folder);
      return done;
    };
    together([&] {
      if (comm.rank > 0) return;
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
    together([&] {
      throw_if(comm.rank > 0 && lock(), ExitCode::usage,
               "--save {}: it is another folder than rank 0's: give all ranks one", folder);
    });
  }

  std::vector<TensorFile> files_in(const std::string& checkpoint) const {
    const Architecture model = architecture(options);
    std::vector<TensorFile> files{{checkpoint + "/model.safetensors"},
                                  {checkpoint + "/optimizer.safetensors"}};
    const std::tuple<int, State, const char*> saved[] = {{0, State::master, ""},
                                                         {1, State::momentum, ".exp_avg"},
                                                         {1, State::variance, ".exp_avg_sq"}};
    for (const auto& [file, state, suffix] : saved) {
      std::vector<StoredTensor>& tensors = files[file].tensors;
      for (int l = 0; l < std::ssize(model.layers); ++l) {
        std::int64_t start = 0;
        for (const Parameter& tensor : model.layers[l]) {
          tensors.push_back({tensor.name + suffix, tensor.shape, state, l, start});
          start += tensor.size();
        }
      }
    }
    return files;
  }

  /// What every header says: which run it is of, and how far it has come.
  Metadata says() const {
    Metadata all{{"format", "pt"},  // as PyTorch's own
                 {"dtype", name_of(options.dtype)},
                 {"task", name_of(options.task)},
                 {"width", fmt::to_string(options.width)},
                 {"layers", fmt::to_string(options.layers)},
                 {"seed", fmt::to_string(options.seed)},
                 {"data", data.empty() ? "generated" : data},
                 {"step", fmt::to_string(progress_.steps)},
                 {"updates", fmt::to_string(progress_.updates)},
                 {"loss_scale", fmt::to_string(progress_.loss_scale)},
                 {"good_steps", fmt::to_string(progress_.good_steps)}};
    // Width and layers say all of the others' shapes.
    const Architecture model = architecture(options);
    if (!model.config.empty()) all["shape"] = model.words;
    return all;
  }

  /// Throws Error (data) unless a header says the same; a run's first header sets progress.
  void check(const std::string& path, Metadata found) {
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

  /// What this rank moves of the tensor, in parts no larger than its own of the layer.
  std::vector<View> parts_of(const StoredTensor& tensor, Move how) const {
    std::vector<View> parts;
    for (Device* const place : {&device, &device.host()}) {
      for (const Holding* held : place->holdings) {
        // Weights are what lies in fp32, parameters or their master; others are copies of them.
        const State state = held->state == State::parameters ? State::master : held->state;
        if (state != tensor.state) continue;
        if (how == Move::read) {
          const View all = held->held(tensor.layer);
          const std::int64_t size = layout.shard_size(tensor.layer);
          for (std::int64_t at = 0; at < all.size; at += size) parts.push_back(all.part(at, size));
        } else if (held->view().dtype == Dtype::fp32) {
          return {held->shard(tensor.layer)};
        }
      }
    }
    return parts;
  }

  /// Of all tensors; sets their digests, over all ranks, or throws Error (data) on all ranks when
  /// one is not what it should be.
  void move(Move how, TensorFile& file) {
    std::vector<std::uint64_t> mine;
    together([&] {
      std::optional<Buffer> staging;  // page-locked, for as many fp32 as a part has at most
      const std::int64_t room = layout.largest_layer() / layout.ranks() * sizeof(float);
      if (device.type == DeviceType::cuda) staging.emplace(device.host(), room);
      for (const StoredTensor& tensor : file.tensors) {
        mine.push_back(0);
        for (const View& part : parts_of(tensor, how)) {
          const std::uint64_t digest =
              move_part(how, file, tensor, part, staging ? staging->data() : nullptr);
          if (part.start == layout.shard_start(tensor.layer)) mine.back() = digest;
        }
      }
    });
    if (how == Move::write) return;
    const std::vector<std::uint64_t> all = comm.gather(mine);
    together([&] {
      for (std::size_t t = 0; t < mine.size(); ++t) {
        std::uint64_t sum = 0;
        for (std::size_t at = t; at < all.size(); at += mine.size()) sum += all[at];
        const std::string digest = fmt::format("{:016x}", sum);
        std::string& said = file.tensors[t].digest;
        const bool foreign = said.empty() && options.resume.empty();  // others wrote it
        if (how == Move::check || foreign) said = digest;
        throw_if(said != digest, ExitCode::data,
                 "{}: {} has digest {}, and should have \"{:.40}\": it is not what was saved",
                 file.path, file.tensors[t].name, digest, said);
      }
    });
  }

  /// Moves those elements of the tensor that lie in `part`, which is a part of its layer; what is
  /// read is rounded to the part's dtype. A GPU's pass through `staging`. Returns the digest of
  /// what was read. Throws Error (resources) in the system's words.
  std::uint64_t move_part(Move how, const TensorFile& file, const StoredTensor& tensor, View part,
                          std::byte* staging) {
    const std::int64_t from = std::max(part.start, tensor.start);
    const std::int64_t to = std::min(part.start + part.used, tensor.start + tensor.size());
    if (from >= to) return 0;
    const View ours = part.part(from - part.start, to - from);
    std::byte* const memory = ours.on_gpu() ? staging : ours.data;
    if (ours.on_gpu() && how != Move::read) ours.device->copy(memory, ours.data, ours.bytes());
    const std::int64_t stored_bytes = bytes_of(tensor.dtype);
    const std::int64_t begin = tensor.begin + (from - tensor.start) * stored_bytes;
    if (how == Move::write) {  // by one thread, as the system lets only one write a file at a time
      check_call(move_all(pwrite, file.fd(), memory, ours.bytes(), begin), file.path);
      // The disk begins now, and goes on while the next are written and all are checked.
      sync_file_range(file.fd(), begin, ours.bytes(), SYNC_FILE_RANGE_WRITE);
      return 0;
    }
    // All of it at once: threads that ask for pieces in turns look like nobody who reads on.
    posix_fadvise(file.fd(), begin, (to - from) * stored_bytes, POSIX_FADV_WILLNEED);
    const std::int64_t number = layout.first_parameter(tensor.layer) + from;
    std::atomic<std::uint64_t> sum = 0;
    std::atomic<int> failure = 0;
    team_.each_piece(to - from, [&](std::int64_t offset, std::int64_t count) {
      static thread_local std::array<float, Team::piece> read;
      static thread_local std::array<std::uint16_t, Team::piece> halves;  // of a file that has them
      std::byte* const held = memory + offset * bytes_of(ours.dtype);
      const std::int64_t bytes = count * stored_bytes;
      auto* to = reinterpret_cast<std::byte*>(read.data());
      if (tensor.dtype != Dtype::fp32) to = reinterpret_cast<std::byte*>(halves.data());
      const bool done = move_all(pread, file.fd(), to, bytes, begin + offset * stored_bytes);
      if (!done) failure = errno;
      with_type(tensor.dtype, [&]<class T>(T) {
        if constexpr (sizeof(T) < sizeof(float)) {
          for (std::int64_t i = 0; i < count; ++i) read[i] = widen(T{halves[i]});
        }
      });
      const bool same = how != Move::check || std::memcmp(read.data(), held, bytes) == 0;
      if (done && !same) failure = differs;
      std::uint64_t digest_here = 0;
      on_wide_vectors([&] {
        digest_here = digest(std::span<const float>(read.data(), count), number + offset);
      });
      sum += digest_here;
      if (how == Move::check) return;
      with_type(ours.dtype, [&]<class T>(T) {
        const auto elements = reinterpret_cast<T*>(held);
        on_wide_vectors([&] {
          for (std::int64_t i = 0; i < count; ++i) elements[i] = narrow<T>(read[i]);
        });
      });
    });
    throw_if(failure == differs, ExitCode::resources, "{} does not hold what was written",
             file.path);
    errno = failure;
    check_call(errno == 0, file.path);
    if (ours.on_gpu() && how == Move::read) ours.device->copy(ours.data, memory, ours.bytes());
    return sum;
  }

  Team team_{threads};
  LossScale loss_scale_{options};  // as the trainer's own
  Progress progress_;
  std::string source_ = options.init.empty() ? options.resume : options.init;  // what is loaded
  std::vector<TensorFile> sources_;
  std::shared_ptr<std::FILE> lock_;
};
}  // namespace

std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run) {
  return std::make_unique<StepFolders>(run);
}
}  // namespace zero
