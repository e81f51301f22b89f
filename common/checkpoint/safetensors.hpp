// SPDX-License-Identifier: MIT
// The field's file of tensors, safetensors: 8 bytes that say how long the header is, the header in
// JSON, the tensors. All of ours are fp32; others' may have 16 bits.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "memory/state.hpp"
#include "memory/throw_error.hpp"

namespace zero {
using Json = nlohmann::json;

/// Throws Error (data) if a file says something else than this run, or nothing unless it may.
inline void compare(const std::string& path, const Json& found, const Json& ours,
                    bool may_miss = false) {
  for (const auto& [name, value] : ours.items()) {
    const Json theirs = found.value(name, may_miss ? value : Json());
    if (theirs != value)
      throw_error(ExitCode::data, "{}: it has {} {:.99}, this run {:.99}", path, name,
                  theirs.dump(), value.dump());
  }
}

/// A file or a folder.
struct OpenFile {
  OpenFile(const std::string& path, int how) : path(path), fd(open(path.c_str(), how, 0666)) {
    if (fd < 0) throw_errno(path);
  }
  OpenFile(const OpenFile&) = delete;
  ~OpenFile() { close(fd); }
  /// By pread or pwrite, of which one call may move a part of the bytes.
  void move(auto call, auto bytes, std::int64_t at) const {
    while (!bytes.empty()) {
      errno = ENODATA;  // where nothing is left to read
      const std::int64_t moved = call(fd, bytes.data(), bytes.size(), at);
      if (moved <= 0) throw_errno(path);
      bytes = bytes.subspan(moved), at += moved;
    }
  }
  void sync() const {
    if (fsync(fd) != 0) throw_errno(path);
  }

  const std::string path;
  const int fd;
};

struct StoredTensor {
  static constexpr std::array dtypes{"F32", "BF16", "F16"};  // as the format calls each Dtype

  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // whose values it has
  int layer;
  std::int64_t start, size;  // its first element's position within the layer; elements
  Dtype dtype = Dtype::fp32;  // in the file
  std::int64_t begin = 0;  // its first byte there, behind the header

  std::int64_t end() const { return begin + size * bytes_of(dtype); }
  /// What a header says of it.
  Json entry() const {
    const char* const name = dtypes[static_cast<int>(dtype)];
    return {{"dtype", name}, {"shape", shape}, {"data_offsets", {begin, end()}}};
  }
};

struct TensorFile {
  std::string path;
  std::vector<StoredTensor> tensors{};
  Json header{};
  std::int64_t header_bytes = 0;  // with the length

  Json& metadata() { return header["__metadata__"]; }

  /// Appends the tensors in this order to a header of metadata; returns what stands before them.
  std::string make_header() {
    std::int64_t end = 0;
    for (StoredTensor& tensor : tensors) {
      tensor.begin = end, end = tensor.end();
      header[tensor.name] = tensor.entry();
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
    const std::int64_t length = std::ssize(text);
    header_bytes = sizeof(length) + length;
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  }

  /// Throws Error (data) if there is no file, nlohmann's exceptions if it has no header.
  void read_header() {
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none))  // a pipe would be waited for
      throw_error(ExitCode::data, "cannot read {}: it is no file", path);
    std::ifstream file(path, std::ios::binary);
    std::int64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof(length)) >> header;
    header_bytes = sizeof(length) + length;
    metadata().update(Json::object());  // others' files need have none
  }

  /// Where they are, and in which dtype. Throws Error (data) unless the file consists of these.
  void find_tensors() {
    Json ours{{"__metadata__", metadata()}};
    std::int64_t bytes = header_bytes;
    for (StoredTensor& tensor : tensors) {
      if (tensor.name == "lm_head.weight" && !header.contains(tensor.name))
        throw_error(ExitCode::data,
                    "{}: it has no {}, as its head is tied to the embedding; this model's is not",
                    path, tensor.name);
      const Json& found = header.at(tensor.name);
      const auto dtype = std::ranges::find(tensor.dtypes, found.at("dtype"));
      if (dtype != tensor.dtypes.end()) tensor.dtype = Dtype(dtype - tensor.dtypes.begin());
      tensor.begin = found.at("data_offsets").at(0);
      ours[tensor.name] = tensor.entry();
      bytes += tensor.end() - tensor.begin;
    }
    compare(path, header, ours);
    compare(path, {{"entries", header.size()}, {"bytes", std::filesystem::file_size(path)}},
            {{"entries", ours.size()}, {"bytes", bytes}});
  }
};
}  // namespace zero
