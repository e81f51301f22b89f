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

/// Refuses what nests deeper or lists more than a header: what it takes is less than the text.
Json parse(const std::string& text) {
  int in_a_row = 0;  // values without a name
  return Json::parse(text, [&](int depth, Json::parse_event_t event, Json&) {
    in_a_row = event == Json::parse_event_t::value ? in_a_row + 1 : 0;
    if (depth > 3 || in_a_row > 4) throw std::length_error("it nests or lists more than a header");
    return true;
  });
}
}  // namespace

std::string write_header(std::vector<StoredTensor>& tensors, Metadata metadata) {
  Json header;
  std::int64_t at = 0;
  for (StoredTensor& tensor : tensors) {
    const std::int64_t begin = at;
    at += tensor.size() * std::int64_t{sizeof(float)};
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, at}}};
    tensor.begin = begin;
    metadata["digest " + tensor.name] = tensor.digest;
  }
  header["__metadata__"] = metadata;
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
  const std::uint64_t length = text.size();
  for (StoredTensor& tensor : tensors) tensor.begin += length_bytes + std::ssize(text);
  return std::string(reinterpret_cast<const char*>(&length), length_bytes) + text;
}

void read_header(int fd, const std::string& path, std::vector<StoredTensor>& tensors,
                 const std::function<void(const Metadata&)>& check) {
  const auto expect = [&](bool holds, const std::string& what) {
    throw_if(!holds, ExitCode::data, "{} does not hold this model's tensors: {}", path, what);
  };
  const std::int64_t all = lseek(fd, 0, SEEK_END);
  std::int64_t length = -1;
  const bool whole = pread(fd, &length, length_bytes, 0) == length_bytes && length >= 0 &&
                     length <= all - length_bytes;
  expect(whole, fmt::format("its header would have {} bytes, the file has {}", length, all));
  std::string text(length, ' ');
  expect(pread(fd, text.data(), length, length_bytes) == length, "its header cannot be read");
  const std::int64_t start = length_bytes + length;
  Json header;
  try {
    header = parse(text);
    Metadata metadata = header.value("__metadata__", Metadata());
    header.erase("__metadata__");
    for (StoredTensor& tensor : tensors) {
      const auto said = metadata.extract("digest " + tensor.name);
      tensor.digest = said ? said.mapped() : "";
    }
    check(metadata);
    std::map<std::int64_t, std::int64_t> places;  // first bytes, and lengths
    for (StoredTensor& tensor : tensors) {
      expect(header.contains(tensor.name), fmt::format("it has no {}", tensor.name));
      const Json& found = header[tensor.name];
      const std::string type = found.at("dtype").dump(), shape = found.at("shape").dump();
      const std::string ours = Json(tensor.shape).dump();
      expect(
          type == "\"F32\"" && shape == ours,
          fmt::format("{} is {:.40} {:.40} instead of \"F32\" {}", tensor.name, type, shape, ours));
      const Json &begin = found.at("data_offsets").at(0), end = found.at("data_offsets").at(1);
      const std::int64_t bytes = tensor.size() * std::int64_t{sizeof(float)};
      const bool fits =
          begin.is_number_unsigned() && begin <= all && end == begin.get<std::int64_t>() + bytes;
      expect(fits, fmt::format("{} has {} bytes, and should lie from {:.40} to {:.40}", tensor.name,
                               bytes, begin.dump(), end.dump()));
      tensor.begin = start + begin.get<std::int64_t>();
      places[tensor.begin] += bytes;
      header.erase(tensor.name);
    }
    std::int64_t reached = start;
    for (const auto& [begin, bytes] : places) {
      expect(begin == reached, fmt::format("byte {} belongs to two of them, or to none", reached));
      reached += bytes;
    }
    expect(reached == all, fmt::format("they end at byte {}, the file at {}", reached, all));
  } catch (const Json::exception& error) {
    expect(false, fmt::format("its header is none: {:.100}", error.what()));
  } catch (const std::length_error& error) {
    expect(false, error.what());
  }
  expect(header.empty(),
         header.empty() ? "" : fmt::format("it has {:.40}", header.items().begin().key()));
}
}  // namespace zero
