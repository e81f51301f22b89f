// SPDX-License-Identifier: MIT
// The field's file of tensors, safetensors: 8 bytes that say how long the header is, the header in
// JSON, the tensors. All of ours are fp32; others' may have 16 bits.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "memory/state.hpp"
#include "memory/throw_if.hpp"

namespace zero {
using Json = nlohmann::json;

/// Throws Error (resources) in the system's words for a call that it has just refused.
inline void check_call(bool done, const std::string& path) {
  if (!done) throw Error(ExitCode::resources, fmt::format("{}: {}", path, std::strerror(errno)));
}

/// An open file or folder.
struct File {
  File(const std::string& path, int how) : path(path), fd(open(path.c_str(), how, 0666)) {
    check_call(fd >= 0, path);
  }
  File(const File&) = delete;
  ~File() { close(fd); }
  /// By pread or pwrite, of which one call may move a part of the bytes.
  void move(auto call, auto bytes, std::int64_t at) const {
    while (!bytes.empty()) {
      errno = ENODATA;  // where nothing is left to read
      const std::int64_t moved = call(fd, bytes.data(), bytes.size(), at);
      check_call(moved > 0, path);
      bytes = bytes.subspan(moved), at += moved;
    }
  }
  void sync() const { check_call(fsync(fd) == 0, path); }

  const std::string path;
  const int fd;
};

struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // whose values it has
  int layer;
  std::int64_t start, size;  // its first element's position within the layer; elements
  Dtype dtype = Dtype::fp32;  // in the file
  std::int64_t begin = 0;  // its first byte there
};

struct TensorFile {
  std::string path;
  std::vector<StoredTensor> tensors{};
  Json metadata{};  // what the header says beside tensors

  /// What stands before the tensors, which follow in this order; sets where each begins.
  std::string make_header() {
    Json header{{"__metadata__", metadata}};
    std::int64_t end = 0;
    for (StoredTensor& tensor : tensors) {
      tensor.begin = std::exchange(end, end + tensor.size * bytes_of(tensor.dtype));
      header[tensor.name] = {
          {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, end}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
    const std::int64_t length = std::ssize(text);
    for (StoredTensor& tensor : tensors) tensor.begin += sizeof(length) + length;
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  }

  /// Sets what the file says; calls check() when metadata is known. Throws Error (data) unless the
  /// file has these tensors and no more.
  void read_header(const std::function<void()>& check) {
    const File file(path, O_RDONLY);
    const std::int64_t all = lseek(file.fd, 0, SEEK_END);
    std::int64_t length = 0;
    if (all > 8) file.move(pread, std::as_writable_bytes(std::span(&length, 1)), 0);
    throw_if(length <= 0 || length > all - 8, ExitCode::data,
             "{}: its header would have {} bytes, the file has {}", path, length, all);
    std::string text(length, ' ');
    file.move(pread, std::span(text), sizeof(length));
    Json header = Json::parse(text);
    metadata = header.value("__metadata__", Json::object());
    header.erase("__metadata__");
    check();
    std::int64_t end = 0;
    for (StoredTensor& tensor : tensors) {
      const bool tied = tensor.name == "lm_head.weight";
      throw_if(!header.contains(tensor.name), ExitCode::data, "{}: it has no {}{}", path,
               tensor.name,
               tied ? ", as its head is tied to the embedding; this model's head is its own" : "");
      const Json &found = header[tensor.name], &shape = found.at("shape"), ours = tensor.shape;
      throw_if(shape != ours, ExitCode::data, "{}: {} has shape {:.80}, this model's {}", path,
               tensor.name, shape.dump(), ours.dump());
      const Json dtypes{{"F32", Dtype::fp32}, {"BF16", Dtype::bf16}, {"F16", Dtype::fp16}};
      tensor.dtype = dtypes.at(found.at("dtype").get<std::string>());
      tensor.begin = 8 + length + found.at("data_offsets").at(0).get<std::int64_t>();
      end = std::max(end, tensor.begin + tensor.size * bytes_of(tensor.dtype));
    }
    throw_if(header.size() != tensors.size() || end != all, ExitCode::data,
             "{}: it has {} tensors and {} bytes, this model's {} and {}", path, header.size(), all,
             tensors.size(), end);
  }
};
}  // namespace zero
