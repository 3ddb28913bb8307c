#include "text/documents/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/fail.h"
#include "base/plugin.h"

namespace perigee::text {
namespace {

using namespace std::string_view_literals;

class PlainFile : public ByteSource {
 public:
  explicit PlainFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) refuse();
    while (front_.size() < kFront && more()) {
    }
  }
  ~PlainFile() override { ::close(fd_); }
  PlainFile(const PlainFile&) = delete;

  // The first bytes, which tell the kind of the file.
  std::string_view front() const { return front_; }

  size_t read(char* to, size_t most) override {
    if (given_ < front_.size()) {
      const auto count = std::min(most, front_.size() - given_);
      std::memcpy(to, front_.data() + given_, count);
      given_ += count;
      return count;
    }
    const auto count = read_some(to, most);
    position_ += count;
    return count;
  }
  uint64_t position() const override { return position_; }

 private:
  static constexpr size_t kFront = 8;

  bool more() {
    char bytes[kFront];
    const auto count = read_some(bytes, kFront - front_.size());
    front_.append(bytes, count);
    position_ += count;
    return count > 0;
  }

  size_t read_some(char* to, size_t most) {
    for (;;) {
      const auto count = ::read(fd_, to, most);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) refuse();
    }
  }

  [[noreturn]] void refuse() const {
    fail("data", "cannot read \"{}\": {}", path_, std::strerror(errno));
  }

  std::string path_;
  int fd_;
  std::string front_;
  size_t given_ = 0;
  uint64_t position_ = 0;
};

std::optional<Compression> compression_of(const std::string& path, std::string_view front) {
  if (front.starts_with("\x1f\x8b"sv)) return Compression::gzip;
  if (front.starts_with("\x28\xb5\x2f\xfd"sv)) return Compression::zstd;
  if (front.starts_with("PAR1"sv)) {
    fail("data",
         "files of documents are text or JSON lines, but {} is Parquet: convert it, for example by "
         "Python's pandas.read_parquet(FILE).to_json(\"FILE.jsonl.gz\", orient=\"records\", "
         "lines=True)",
         path);
  }
  const std::pair<std::string_view, const char*> others[] = {{"BZh"sv, "bzip2"},
                                                             {"\375\067zXZ"sv, "xz"},
                                                             {"\x04\x22\x4d\x18"sv, "LZ4"},
                                                             {"PK\x03\x04"sv, "zip"},
                                                             {"7z\xbc\xaf\x27\x1c"sv, "7z"}};
  for (const auto& [begin, name] : others) {
    if (!front.starts_with(begin)) continue;
    fail("data",
         "files of documents are plain, or compressed by gzip or zstd, but {} is compressed by {}: "
         "compress it by one of these",
         path, name);
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  auto file = std::make_unique<PlainFile>(path);
  const auto compression = compression_of(path, file->front());
  if (!compression) return file;
  static const auto uncompress = reinterpret_cast<Uncompress>(
      open_plugin("data", "a compressed file", "perigee_compressed", "perigee_uncompress"));
  std::unique_ptr<ByteSource> source;
  uncompress(std::move(file), path, *compression, source);
  return source;
}

bool is_compressed(const std::string& path) {
  return compression_of(path, PlainFile(path).front()).has_value();
}

uint64_t size_of_file(const std::string& path) {
  std::error_code ignored;
  const auto regular = std::filesystem::is_regular_file(path, ignored);
  return regular ? std::filesystem::file_size(path, ignored) : 0;
}

}  // namespace perigee::text
