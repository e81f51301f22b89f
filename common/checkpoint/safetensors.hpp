// SPDX-License-Identifier: MIT
// The file format safetensors: 8 bytes with the length of the header, the header in JSON, the
// tensors. Our files have fp32 tensors. Files of others may have 16-bit tensors, and faults.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "memory/state.hpp"
#include "memory/throw_error.hpp"

namespace zero {
using nlohmann::json;

/// Returns a value of a file's header for a sentence: in ASCII, at most `most` characters.
inline std::string shown(const json& value, std::size_t most = 99) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, most);
}

/// Returns the object's value of that name; null if there is none, or no object.
inline const json& in(const json& object, const std::string& name) {
  static const json none;
  return object.contains(name) ? object[name] : none;
}

/// Throws Error (data) if `found` has another value for a name of `ours`, or none without may_miss.
inline void compare(const std::string& path, const json& found, const json& ours,
                    bool may_miss = false) {
  for (const auto& [name, value] : ours.items()) {
    const json& theirs = in(found, name);
    if (theirs != value && (found.contains(name) || !may_miss))
      throw_error(ExitCode::data, "{}: it has {} {}, this run {}", path, name, shown(theirs),
                  shown(value));
  }
}

/// An open file or folder. Its functions throw Error (resources) in the system's words.
struct OpenFile {
  OpenFile(const std::string& path, int how) : path(path), fd(open(path.c_str(), how, 0666)) {
    if (fd < 0) throw_errno(path);
  }
  OpenFile(const OpenFile&) = delete;
  ~OpenFile() { close(fd); }
  /// Calls pread or pwrite until all bytes have moved, to or from position `at` of the file.
  void move(auto call, auto bytes, std::int64_t at) const {
    while (!bytes.empty()) {
      errno = ENODATA;  // for a read at the end of the file, which sets no errno
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

constexpr std::int64_t most_json = 100'000'000;  // bytes; the format allows no longer header

/// Returns the file's bytes from `at` on, at most `most`. Throws Error (data) if it is unreadable.
inline std::string read_text(const std::string& path, std::int64_t at, std::int64_t most) {
  std::error_code why;
  if (!std::filesystem::is_regular_file(path, why) && why != std::errc::permission_denied)
    throw_error(ExitCode::data, "cannot read {}: it is no file", path);  // a pipe would block
  if (access(path.c_str(), R_OK) != 0)
    throw_error(ExitCode::data, "cannot read {}: {}", path, std::strerror(errno));
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, why));  // -1: gone
  std::string text(std::clamp<std::int64_t>(size - at, 0, most), 0);
  OpenFile(path, O_RDONLY).move(pread, std::span(text), at);
  return text;
}

/// Parses JSON in less memory than 16 * bytes (the file's) + 64 KB. Cuts strings to 300 characters.
/// Throws Error (data), beginning with `what`, for no object, a key twice, too deep or many values.
inline json read_object(const std::string& what, const std::string& text, std::int64_t bytes) try {
  const auto refuse = [&](const std::string& why) {
    throw_error(ExitCode::data, "{}: {}", what, why);
  };
  // A value takes up to 144 bytes; so does a key, as `keys` has a second copy of it.
  std::int64_t room = 14 * bytes + (64 << 10);
  std::vector<std::set<std::string>> keys;  // of the objects that have begun and not ended
  using Event = json::parse_event_t;
  json all = json::parse(text, [&](int depth, Event event, json& parsed) {
    if (depth > 16) refuse("it is nested deeper than 16 levels");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::object_end || event == Event::array_end) return true;
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      refuse("it has the key " + shown(parsed) + " twice");
    if (event == Event::value && parsed.is_string())
      parsed = parsed.get_ref<const std::string&>().substr(0, 300);
    if ((room -= 144) < 0) refuse(fmt::format("it has more values than {} bytes need", bytes));
    return true;
  });
  if (!all.is_object()) refuse("it is no object in JSON");
  return all;
} catch (const json::exception& error) {  // its text is "[name] reason"
  const std::string_view why = error.what();
  throw_error(ExitCode::data, "{}: it is no JSON: {}", what, shown(why.substr(why.find(' ') + 1)));
}

/// Names the kind of a file that begins with this text, and says what to do; empty: unknown.
inline std::string known_as(const std::string& text) {
  const auto begins = [&](auto... with) { return (text.starts_with(with) || ...); };
  const bool is_text = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return c >= ' ' || (c >= '\t' && c <= '\r');
  });
  return begins("version https://git-lfs") ? ", but a git-lfs pointer: run `git lfs pull`"
         : begins("PK\3\4", "\x80\2", "\x80\3", "\x80\4", "\x80\5")
             ? ", but a pickle of torch.save, or a zip: load it there, and save it as safetensors"
         : begins("GGUF") ? ", but GGUF: take the model that it was made from"
         : begins("\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ", "BZh") ? ", but packed: unpack it"
         : is_text ? ", but a text or a page (HTML, JSON): download the file itself"
                   : "";
}

struct StoredTensor {
  static constexpr std::array dtypes{"F32", "BF16", "F16"};  // the format's names, by Dtype

  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // the state that it is a part of
  int layer;  // -1: none, the tensor is not loaded
  std::int64_t start, size;  // in elements; start: position of the first one within the layer
  Dtype dtype = Dtype::fp32;  // in the file
  std::int64_t begin = 0;  // position of its first byte behind the header

  std::int64_t end() const { return begin + size * bytes_of(dtype); }
  json entry() const {
    const char* const name = dtypes[static_cast<int>(dtype)];
    return {{"dtype", name}, {"shape", shape}, {"data_offsets", {begin, end()}}};
  }
};

struct TensorFile {
  std::string path;
  std::vector<StoredTensor> tensors{};
  json header{};
  std::int64_t header_bytes = 0;  // with the 8 bytes of its length

  json& metadata() { return header["__metadata__"]; }

  /// Adds the tensors, in this order, to the header. Returns the file's bytes before the tensors.
  std::string make_header() {
    std::int64_t end = 0;
    for (StoredTensor& tensor : tensors) {
      tensor.begin = end, end = tensor.end();
      header[tensor.name] = tensor.entry();
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that elements are aligned
    const std::int64_t length = std::ssize(text);
    header_bytes = sizeof(length) + length;
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  }

  /// Reads `header`. Throws Error (data) if the file has no valid one.
  void read_header() {
    const std::string begin = read_text(path, 0, 64);
    std::error_code ignored;
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
    std::int64_t length = 0;
    std::memcpy(&length, begin.data(), std::min(begin.size(), sizeof(length)));
    if (length < 1 || length > std::min(size - 8, most_json) || begin[8] != '{') {
      const bool cut = begin.size() > 8 && begin[8] == '{' && 0 < length && length <= most_json;
      throw_error(ExitCode::data, "{}: it is no safetensors file{} ({} bytes, header length {})",
                  path, cut ? ", but the beginning of one" : known_as(begin), size,
                  static_cast<std::uint64_t>(length));
    }
    header_bytes = sizeof(length) + length;
    header = read_object(fmt::format("{}, header length {}", path, length),
                         read_text(path, sizeof(length), length), size);
    if (metadata().is_null()) metadata() = json::object();  // others' files need not have it
    if (!metadata().is_object()) compare(path, header, {{"__metadata__", json::object()}});
  }

  /// Finds each tensor's position and dtype. Throws Error (data) if one is missing, or the file has
  /// gaps or other tensors. may_be_tied: says so if only lm_head.weight is missing.
  void find_tensors(bool may_be_tied) {
    std::error_code ignored;
    const std::int64_t bytes = std::filesystem::file_size(path, ignored) - header_bytes;
    std::vector<std::string> missing, others;
    for (const StoredTensor& tensor : tensors) {
      if (!header.contains(tensor.name)) missing.push_back(tensor.name);
    }
    std::vector<StoredTensor> all;
    for (const auto& [name, entry] : header.items()) {
      const auto ours = std::ranges::find(tensors, name, &StoredTensor::name);
      const bool is_ours = ours != tensors.end();
      if (!is_ours && !name.ends_with("rotary_emb.inv_freq")) {  // old files' RoPE constants
        if (name != "__metadata__") others.push_back(shown(name));
        continue;
      }
      all.push_back(is_ours ? *ours : StoredTensor{name, {0}, State(), -1, 0, 0});
      StoredTensor& tensor = all.back();
      const auto dtype = std::ranges::find(tensor.dtypes, in(entry, "dtype"));
      if (dtype != tensor.dtypes.end()) tensor.dtype = Dtype(dtype - tensor.dtypes.begin());
      const auto offset = [&, &range = in(entry, "data_offsets")](std::size_t i) {
        const json& x = range.is_array() && range.size() == 2 ? range[i] : range;
        const std::uint64_t most = bytes + 1;
        return std::int64_t(std::min(x.is_number_unsigned() ? x.get<std::uint64_t>() : 0, most));
      };
      if (offset(1) > bytes)
        throw_error(ExitCode::data, "{}: it has {} {} in {} bytes behind its header", path,
                    shown(name), shown(entry), bytes);
      tensor.begin = offset(0);
      if (!is_ours)
        tensor.size = std::max<std::int64_t>(offset(1) - offset(0), 0) / bytes_of(tensor.dtype);
      if (!is_ours) tensor.shape = {tensor.size};
    }
    const auto listed = [](const std::vector<std::string>& names) {
      return names[0] + (names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "");
    };
    std::string why;
    if (!missing.empty()) why += "it has no " + listed(missing);
    if (may_be_tied && why == "it has no lm_head.weight")
      why += ", as its head is tied to the embedding; this model's is not";
    if (!others.empty())
      why += (why.empty() ? "it has " : ", but ") + listed(others) + ", not of this model";
    if (!why.empty()) throw_error(ExitCode::data, "{}: {}", path, why);
    std::ranges::sort(all, {}, [](const auto& it) { return std::pair(it.begin, it.size); });
    std::int64_t at = 0;
    for (StoredTensor& tensor : all) {
      const std::string its = shown(header[tensor.name], -1);
      tensor.begin = at, at = tensor.end();
      if (its != shown(tensor.entry(), -1))
        throw_error(ExitCode::data, "{}: it has {} {:.99}; of this model, in the file's order, {}",
                    path, shown(tensor.name), its, shown(tensor.entry()));
    }
    if (at != bytes)
      throw_error(ExitCode::data, "{}: it has tensors of {} bytes in {} behind its header", path,
                  at, bytes);
    std::erase_if(all, [](const StoredTensor& it) { return it.layer < 0; });
    tensors = std::move(all);
  }
};
}  // namespace zero
