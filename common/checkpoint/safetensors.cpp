// SPDX-License-Identifier: MIT
#include "checkpoint/safetensors.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "memory/throw_if.hpp"

namespace zero {
namespace {
using Json = nlohmann::json;
constexpr std::int64_t length_bytes = 8;
static_assert(std::endian::native == std::endian::little, "as the file's numbers are");

/// What a header says of these tensors in this order; sets where each begins if the first one's
/// first byte has number `begin`.
Json entries(std::vector<StoredTensor>& tensors, std::int64_t begin) {
  Json header;
  std::int64_t end = 0;
  for (StoredTensor& tensor : tensors) {
    const std::int64_t at = std::exchange(end, end + tensor.size() * std::int64_t{sizeof(float)});
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    tensor.begin = begin + at;
  }
  return header;
}
}  // namespace

std::string write_header(std::vector<StoredTensor>& tensors, Metadata metadata) {
  for (const StoredTensor& tensor : tensors) metadata["digest " + tensor.name] = tensor.digest;
  Json header = entries(tensors, 0);
  header["__metadata__"] = metadata;
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
  const std::int64_t length = std::ssize(text);
  entries(tensors, length_bytes + length);
  return std::string(reinterpret_cast<const char*>(&length), length_bytes) + text;
}

void read_header(int fd, const std::string& path, std::vector<StoredTensor>& tensors,
                 const std::function<void(const Metadata&)>& check) try {
  const auto expect = [&](bool holds, const std::string& what) {
    throw_if(!holds, ExitCode::data, "{}: {}", path, what);
  };
  const std::int64_t all = lseek(fd, 0, SEEK_END);
  std::int64_t length = -1;
  expect(pread(fd, &length, length_bytes, 0) == length_bytes && length >= 0 &&
             length <= all - length_bytes,
         fmt::format("its header would have {} bytes, the file has {}", length, all));
  std::string text(length, ' ');
  expect(pread(fd, text.data(), length, length_bytes) == length, "its header cannot be read");
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
  for (StoredTensor& tensor : tensors) tensor.digest = metadata["digest " + tensor.name];
  std::ranges::sort(tensors, {}, [&](const StoredTensor& tensor) {
    return header.at(tensor.name).at("data_offsets").at(0).get<double>();
  });
  const Json ours = entries(tensors, length_bytes + length);
  for (const auto& [name, entry] : ours.items()) {
    expect(header[name] == entry,
           fmt::format("{} is {:.99}, not {}", name, header[name].dump(), entry.dump()));
  }
  const std::int64_t end = tensors.back().begin + tensors.back().size() * sizeof(float);
  expect(header.size() == ours.size() && end == all,
         fmt::format("{} tensors end at byte {}; it has {}, and {} bytes", ours.size(), end,
                     header.size(), all));
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::data,
              fmt::format("{}: its header is none of this model: {:.100}", path, error.what()));
}
}  // namespace zero
