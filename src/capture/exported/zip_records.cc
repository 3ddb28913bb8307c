#include "capture/exported/zip_records.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string_view>

#include "base/fail.h"

namespace perigee::exported {
namespace {

// Little-endian numbers of the format (APPNOTE.TXT of PKWARE, section 4.3), 0 past the end.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number(size_t at, size_t size) const {
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) {
      value = value << 8 | (at + i < bytes_.size() ? static_cast<uint8_t>(bytes_[at + i]) : 0);
    }
    return value;
  }
  bool has(size_t at, std::string_view signature) const {
    return at <= bytes_.size() && bytes_.substr(at).starts_with(signature);
  }

 private:
  std::string_view bytes_;
};

constexpr std::string_view kRecord = "PK\1\2", kEnd = "PK\5\6", kEnd64 = "PK\6\6",
                           kLocator64 = "PK\6\7";
constexpr uint64_t kElsewhere = 0xffffffff;  // the size is in the extra field of 64-bit sizes

std::string read_part(std::ifstream& file, uint64_t at, uint64_t size) {
  std::string text(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(at));
  file.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Returns the uncompressed size of the record at `at` of the directory.
uint64_t size_of_record(const Bytes& directory, size_t at) {
  const auto size = directory.number(at + 24, 4);
  if (size != kElsewhere) return size;
  auto field = at + 46 + directory.number(at + 28, 2);
  const auto end = field + directory.number(at + 30, 2);
  while (field + 4 <= end) {
    if (directory.number(field, 2) == 1) return directory.number(field + 4, 8);
    field += 4 + directory.number(field + 2, 2);
  }
  return size;
}

}  // namespace

void check_records(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return;
  const auto all = static_cast<uint64_t>(file.tellg());
  // A comment of at most 64 KiB follows the end record.
  const auto tail_size = std::min<uint64_t>(all, 22 + 0xffff + 20);
  const auto tail = read_part(file, all - tail_size, tail_size);
  const auto end = tail.rfind(kEnd);
  if (end == tail.npos) return;
  const Bytes last(tail);
  auto size = last.number(end + 12, 4), begin = last.number(end + 16, 4);
  if (end >= 20 && last.has(end - 20, kLocator64)) {
    const auto at = last.number(end - 20 + 8, 8);
    if (at > all) return;
    const auto text = read_part(file, at, std::min<uint64_t>(56, all - at));
    const Bytes end64(text);
    if (end64.has(0, kEnd64)) {
      size = end64.number(40, 8);
      begin = end64.number(48, 8);
    }
  }
  if (begin > all) return;
  const auto text = read_part(file, begin, std::min(size, all - begin));
  const Bytes directory(text);
  for (size_t at = 0; directory.has(at, kRecord);) {
    const bool compressed = directory.number(at + 10, 2) != 0;
    if (compressed || size_of_record(directory, at) > all) {
      const auto name = text.substr(std::min(text.size(), at + 46), directory.number(at + 28, 2));
      fail("capture", "the records of \"{}\" must be stored as PyTorch stores them, but {} is {}",
           path, name, compressed ? "compressed" : "larger than the file");
    }
    at += 46 + directory.number(at + 28, 2) + directory.number(at + 30, 2) +
          directory.number(at + 32, 2);
  }
}

}  // namespace perigee::exported
