#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "base/files/mapped_file.h"
#include "base/text/depth.h"
#include "checkpoint/checksum.h"

namespace perigee::checkpoint {
namespace {

using graph::DType;

constexpr std::pair<DType, const char*> kNames[] = {{DType::boolean, "BOOL"},
                                                    {DType::uint8, "U8"},
                                                    {DType::int8, "I8"},
                                                    {DType::int16, "I16"},
                                                    {DType::int32, "I32"},
                                                    {DType::int64, "I64"},
                                                    {DType::float8_e4m3, "F8_E4M3"},
                                                    {DType::float8_e5m2, "F8_E5M2"},
                                                    {DType::float16, "F16"},
                                                    {DType::bfloat16, "BF16"},
                                                    {DType::float32, "F32"},
                                                    {DType::float64, "F64"},
                                                    {DType::complex64, "C64"},
                                                    {DType::complex128, "C128"}};

const char* code_of(DType dtype) {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  return "";
}

[[noreturn]] void cut(const std::string& path, std::string_view why) {
  fail("file", "{} must be a whole safetensors file, but {}: it is damaged or cut short", path,
       why);
}

}  // namespace

std::string write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata) {
  return write_safetensors(
      *folder_target(), path, tensors, [&](size_t i) { return tensors[i].bytes; }, metadata);
}

std::string write_safetensors(Target& target, const std::string& path,
                              std::span<const TensorBytes> tensors,
                              const std::function<std::span<const std::byte>(size_t)>& bytes_of,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    uint64_t bytes = graph::size_of(tensor.dtype);
    for (const auto size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    header[tensor.name] = {{"dtype", code_of(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  auto text = header.is_null() ? std::string("{}") : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors start at a multiple of 8
  const uint64_t length = text.size();
  const auto writer = target.create(path, sizeof length + length + offset);
  Checksum checksum;
  const auto write = [&](std::span<const std::byte> bytes) {
    checksum.add(bytes);
    writer->write(bytes);
  };
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(text)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = bytes_of(i);
    write(bytes);
    offset -= bytes.size();
  }
  if (offset != 0) fail_run("file", "tensors of {} must be as large as their shapes say", path);
  writer->finish();
  return checksum.text();
}

uint64_t header_bytes(std::span<const std::byte> start, uint64_t file_bytes,
                      const std::string& path) {
  uint64_t length = 0;
  if (start.size() < sizeof length || file_bytes < sizeof length) cut(path, "it has no header");
  std::memcpy(&length, start.data(), sizeof length);
  if (length > file_bytes - sizeof length) cut(path, "its header is longer than the file");
  return sizeof length + length;
}

SafetensorsHeader read_header(std::span<const std::byte> start, uint64_t file_bytes,
                              const std::string& path) {
  const auto bytes = header_bytes(start, file_bytes, path);
  const auto data_bytes = file_bytes - bytes;
  const auto* text = reinterpret_cast<const char*>(start.data());
  check_json_depth({text + sizeof bytes, bytes - sizeof bytes}, "file", path);
  const auto header = nlohmann::json::parse(text + sizeof bytes, text + bytes, nullptr, false);
  if (!header.is_object()) cut(path, "its header is no JSON object");
  const auto whole = [&](const nlohmann::json& value) {
    if (!value.is_number_unsigned()) {
      cut(path, "its header has a size or offset that is no whole number");
    }
    return value.get<uint64_t>();
  };
  SafetensorsHeader found;
  std::vector<std::pair<SafetensorsHeader::Place, TensorBytes>> tensors;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        found.metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      TensorBytes tensor;
      tensor.name = name;
      const auto dtype = entry.at("dtype").get<std::string>();
      bool known = false;
      for (const auto& [type, type_name] : kNames) {
        if (dtype == type_name) {
          tensor.dtype = type;
          known = true;
        }
      }
      if (!known) cut(path, fmt::format("tensor {} has the unknown dtype {}", name, dtype));
      const auto begin = whole(entry.at("data_offsets").at(0));
      const auto end = whole(entry.at("data_offsets").at(1));
      uint64_t size = graph::size_of(tensor.dtype);
      bool empty = false;  // strides of a tensor without elements must not overflow, either
      for (const auto& value : entry.at("shape")) {
        const auto extent = whole(value);
        empty = empty || extent == 0;
        tensor.shape.push_back(static_cast<int64_t>(extent));
        if (__builtin_mul_overflow(size, std::max<uint64_t>(1, extent), &size) ||
            size > uint64_t{INT64_MAX}) {
          cut(path, fmt::format("tensor {} has an impossible shape", name));
        }
      }
      if (empty) size = 0;
      if (begin > end || end > data_bytes || end - begin != size) {
        cut(path, fmt::format("tensor {} lies outside of it", name));
      }
      tensors.push_back({{bytes + begin, size}, std::move(tensor)});
    }
  } catch (const nlohmann::json::exception& error) {
    cut(path, fmt::format("its header does not fit the format ({})", error.what()));
  }
  // Of two tensors at one place the first has no elements.
  std::ranges::stable_sort(tensors, {}, [](const auto& tensor) {
    return std::pair(tensor.first.offset, tensor.first.bytes);
  });
  uint64_t end = bytes;
  for (auto& [place, tensor] : tensors) {
    if (place.offset != end) cut(path, "its tensors do not lie one after the other");
    end += place.bytes;
    found.places.push_back(place);
    found.tensors.push_back(std::move(tensor));
  }
  if (end != file_bytes) cut(path, fmt::format("{} bytes belong to no tensor", file_bytes - end));
  return found;
}

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = map_file(path);
  mapping_ = file.owner;
  content_ = file.bytes;
  auto header = read_header(content_, content_.size(), path);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].bytes = content_.subspan(header.places[i].offset, header.places[i].bytes);
  }
}

const TensorBytes* SafetensorsFile::find(std::string_view name) const {
  for (const auto& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::string SafetensorsFile::checksum() const { return checksum_of(content_); }

}  // namespace perigee::checkpoint
