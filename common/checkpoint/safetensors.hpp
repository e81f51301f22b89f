// SPDX-License-Identifier: MIT
// The field's file of tensors, safetensors: 8 bytes that say how long the header is, the header in
// JSON, the tensors. All of ours are fp32; others' may have 16 bits. An element has one place,
// whoever holds it.
#pragma once
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "memory/state.hpp"
#include "memory/throw_if.hpp"

namespace zero {
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // whose values it has
  int layer;
  std::int64_t start;  // position of its first element within the layer
  std::int64_t begin = 0;  // its first byte within the file
  Dtype dtype = Dtype::fp32;  // there
  std::string digest = "0000000000000000";  // of all of it; empty: the file says none

  std::int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
  }
  std::int64_t bytes() const { return size() * bytes_of(dtype); }
};

/// What a header says beside tensors and their digests.
using Metadata = std::map<std::string, std::string>;

struct TensorFile {
  using Json = nlohmann::json;
  static constexpr std::int64_t length_bytes = 8;
  static constexpr std::array dtypes{"F32", "BF16", "F16"};  // as the format calls each Dtype
  static_assert(std::endian::native == std::endian::little, "as the file's numbers are");

  std::string path;
  std::vector<StoredTensor> tensors{};
  std::shared_ptr<std::FILE> file{};

  int fd() const { return fileno(file.get()); }

  /// What a header says of the tensors in this order; sets where each begins if the first one's
  /// first byte has number `begin`.
  Json entries(std::int64_t begin) {
    Json header;
    std::int64_t end = 0;
    for (StoredTensor& tensor : tensors) {
      const std::int64_t at = std::exchange(end, end + tensor.bytes());
      header[tensor.name] = {{"dtype", dtypes[static_cast<int>(tensor.dtype)]},
                             {"shape", tensor.shape},
                             {"data_offsets", {at, end}}};
      tensor.begin = begin + at;
    }
    return header;
  }

  /// What stands before the tensors, which follow in this order; sets where each begins.
  std::string make_header(Metadata metadata) {
    for (const StoredTensor& tensor : tensors) metadata["digest " + tensor.name] = tensor.digest;
    Json header = entries(0);
    header["__metadata__"] = metadata;
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
    const std::int64_t length = std::ssize(text);
    entries(length_bytes + length);
    return std::string(reinterpret_cast<const char*>(&length), length_bytes) + text;
  }

  /// Puts the tensors in the file's order, and sets where each begins and its digest. Calls
  /// check(metadata) before it looks at tensors. Throws Error (data) unless the file consists of
  /// exactly these. No allocation is larger than the file.
  void read_header(const std::function<void(const Metadata&)>& check) try {
    const auto expect = [&](bool holds, const std::string& what) {
      throw_if(!holds, ExitCode::data, "{}: {}", path, what);
    };
    const std::int64_t all = lseek(fd(), 0, SEEK_END);
    std::int64_t length = -1;
    expect(pread(fd(), &length, length_bytes, 0) == length_bytes && length >= 0 &&
               length <= all - length_bytes,
           fmt::format("its header would have {} bytes, the file has {}", length, all));
    std::string text(length, ' ');
    expect(pread(fd(), text.data(), length, length_bytes) == length, "its header cannot be read");
    int in_a_row = 0;  // values without a name
    Json header = Json::parse(text, [&](int depth, Json::parse_event_t event, Json&) {
      in_a_row = event == Json::parse_event_t::value ? in_a_row + 1 : 0;
      // What it takes is then less than the text.
      expect(depth <= 3 && in_a_row <= 4, "its header nests or lists more than one does");
      return true;
    });
    Metadata metadata = header.value("__metadata__", Metadata());
    header.erase("__metadata__");
    check(metadata);
    for (StoredTensor& tensor : tensors) {
      expect(header.contains(tensor.name) || tensor.name != "lm_head.weight",
             "it has no lm_head.weight, as its head is tied to the embedding; this model's head is "
             "its own");
      tensor.digest = metadata["digest " + tensor.name];
      const auto dtype = std::ranges::find(dtypes, header.at(tensor.name).at("dtype"));
      if (dtype != dtypes.end()) tensor.dtype = static_cast<Dtype>(dtype - dtypes.begin());
    }
    std::ranges::sort(tensors, {}, [&](const StoredTensor& tensor) {
      return header.at(tensor.name).at("data_offsets").at(0).get<double>();
    });
    const Json ours = entries(length_bytes + length);
    for (const auto& [name, entry] : ours.items()) {
      expect(header[name] == entry,
             fmt::format("{} is {:.99}, not {}", name, header[name].dump(), entry.dump()));
    }
    const std::int64_t end = tensors.back().begin + tensors.back().bytes();
    expect(header.size() == ours.size() && end == all,
           fmt::format("{} tensors end at byte {}; it has {}, and {} bytes", ours.size(), end,
                       header.size(), all));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::data,
                fmt::format("{}: its header is none of this model: {:.100}", path, error.what()));
  }
};
}  // namespace zero
