#include "checkpoint/safetensors.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/mapped_file.h"
#include "base/text/depth.h"

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

// Appends to a file and to its checksum.
class Writer {
 public:
  explicit Writer(const std::string& path)
      : path_(path), state_(XXH3_createState()), fd_(create_file(path)) {
    XXH3_128bits_reset(state_);
    if (fd_ < 0) refuse();
  }
  ~Writer() {
    XXH3_freeState(state_);
    if (fd_ >= 0) {  // not finished
      ::close(fd_);
      discard();
    }
  }

  void write(const void* data, size_t size) {
    XXH3_128bits_update(state_, data, size);
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      const auto written = ::write(fd_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse();
      at += written;
      size -= static_cast<size_t>(written);
    }
  }

  std::string finish() {
    if (::fsync(fd_) != 0 && errno != EINVAL) refuse();
    if (::close(std::exchange(fd_, -1)) != 0) {
      discard();
      refuse();
    }
    const auto digest = XXH3_128bits_digest(state_);
    return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
  }

 private:
  // Removes the incomplete file; a device or a pipe stays.
  void discard() const {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path_, ignored)) ::unlink(path_.c_str());
  }
  [[noreturn]] void refuse() {
    fail_run("file", "{} must be written, but: {}", path_, std::strerror(errno));
  }

  std::string path_;
  XXH3_state_t* state_;
  int fd_;
};

}  // namespace

std::string write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata) {
  return write_safetensors(
      path, tensors, [&](size_t i) { return tensors[i].bytes; }, metadata);
}

std::string write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
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
  Writer writer(path);
  writer.write(&length, sizeof length);
  writer.write(text.data(), text.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = bytes_of(i);
    writer.write(bytes.data(), bytes.size());
    offset -= bytes.size();
  }
  if (offset != 0) fail_run("file", "tensors of {} must be as large as their shapes say", path);
  return writer.finish();
}

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = map_file(path);
  mapping_ = file.owner;
  content_ = file.bytes;
  uint64_t length = 0;
  const auto cut = [&](std::string_view what) {
    fail("file", "{} must be a whole safetensors file, but {}: it is damaged or cut short", path,
         what);
  };
  if (content_.size() < sizeof length) cut("it has no header");
  std::memcpy(&length, content_.data(), sizeof length);
  if (length > content_.size() - sizeof length) cut("its header is longer than the file");
  const auto* text = reinterpret_cast<const char*>(content_.data()) + sizeof length;
  check_json_depth({text, length}, "file", path);
  const auto header = nlohmann::json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) cut("its header is no JSON object");
  const auto data = content_.subspan(sizeof length + length);
  const auto whole = [&](const nlohmann::json& value) {
    if (!value.is_number_unsigned()) cut("its header has a size or offset that is no whole number");
    return value.get<uint64_t>();
  };
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = entry.get<std::map<std::string, std::string>>();
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
      if (!known) cut(fmt::format("tensor {} has the unknown dtype {}", name, dtype));
      const auto begin = whole(entry.at("data_offsets").at(0));
      const auto end = whole(entry.at("data_offsets").at(1));
      uint64_t bytes = graph::size_of(tensor.dtype);
      bool empty = false;  // strides of a tensor without elements must not overflow, either
      for (const auto& value : entry.at("shape")) {
        const auto size = whole(value);
        empty = empty || size == 0;
        tensor.shape.push_back(static_cast<int64_t>(size));
        if (__builtin_mul_overflow(bytes, std::max<uint64_t>(1, size), &bytes) ||
            bytes > uint64_t{INT64_MAX}) {
          cut(fmt::format("tensor {} has an impossible shape", name));
        }
      }
      if (empty) bytes = 0;
      if (begin > end || end > data.size() || end - begin != bytes) {
        cut(fmt::format("tensor {} lies outside of it", name));
      }
      tensor.bytes = data.subspan(begin, bytes);
      tensors_.push_back(std::move(tensor));
    }
  } catch (const nlohmann::json::exception& error) {
    cut(fmt::format("its header does not fit the format ({})", error.what()));
  }
  // Of two tensors at one place the first has no elements.
  std::ranges::stable_sort(tensors_, {}, [](const TensorBytes& tensor) {
    return std::pair(tensor.bytes.data(), tensor.bytes.size());
  });
  size_t end = 0;
  for (const auto& tensor : tensors_) {
    if (tensor.bytes.data() != data.data() + end) {
      cut("its tensors do not lie one after the other");
    }
    end += tensor.bytes.size();
  }
  if (end != data.size()) cut(fmt::format("{} bytes belong to no tensor", data.size() - end));
}

const TensorBytes* SafetensorsFile::find(std::string_view name) const {
  for (const auto& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::string SafetensorsFile::checksum() const {
  const auto digest = XXH3_128bits(content_.data(), content_.size());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

}  // namespace perigee::checkpoint
