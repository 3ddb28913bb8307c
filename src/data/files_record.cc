#include "data/files_record.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/text/depth.h"

namespace perigee::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kPieces = 16, kPieceBytes = 16 << 10;

std::string absolute(const std::string& path) { return fs::absolute(path).lexically_normal(); }

// A file that is open for reading.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) refuse();
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;

  uint64_t size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) refuse();
    return static_cast<uint64_t>(status.st_size);
  }
  // Reads up to the size of `piece`, to its front, and returns the number of bytes.
  size_t read(uint64_t offset, std::string& piece) const {
    size_t done = 0;
    while (done < piece.size()) {
      const auto count = ::pread(fd_, piece.data() + done, piece.size() - done,
                                 static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refuse();
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

 private:
  [[noreturn]] void refuse() const {
    fail("data", "{} must be a readable file, but: {}", path_, std::strerror(errno));
  }
  std::string path_;
  int fd_;
};

std::string hash_of_pieces(const Descriptor& file, uint64_t size) {
  std::string piece(kPieceBytes, '\0'), hashes;
  const bool whole = size <= kPieces * kPieceBytes;
  const auto pieces = whole ? (size + kPieceBytes - 1) / kPieceBytes : kPieces;
  for (uint64_t i = 0; i < pieces; ++i) {
    const auto last = size - std::min(size, kPieceBytes);
    const auto offset = whole ? i * kPieceBytes : last / (kPieces - 1) * i;
    const auto count = file.read(i + 1 == pieces && !whole ? last : offset, piece);
    const auto hash = XXH3_64bits(piece.data(), count);
    hashes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  }
  return fmt::format("{:016x}", XXH3_64bits(hashes.data(), hashes.size()));
}

json entry_of(const std::string& path) {
  const Descriptor file(path);
  const auto size = file.size();
  return {{"file", absolute(path)}, {"bytes", size}, {"hash", hash_of_pieces(file, size)}};
}

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  fail(
      "data",
      "the files of a resumed run stay as they were when it began, but {} {}: restore it, or start "
      "a new run with another train.output",
      file, why);
}

// Compares the entries of a record with the files as they are.
void check_entries(const json& entries, const std::vector<std::string>& files) {
  std::vector<std::string> now;
  for (const auto& file : files) now.push_back(absolute(file));
  std::vector<std::string> before;
  for (const auto& entry : entries) {
    const auto file = entry.value("file", "");
    before.push_back(file);
    if (std::ranges::find(now, file) == now.end()) refuse(file, "is gone");
    const Descriptor open(file);
    const auto size = open.size(), recorded_size = entry.value("bytes", uint64_t{0});
    if (size != recorded_size) {
      refuse(file, fmt::format("had {} bytes and has {}", recorded_size, size));
    }
    if (hash_of_pieces(open, size) != entry.value("hash", "")) refuse(file, "has other content");
  }
  for (const auto& file : now) {
    if (std::ranges::find(before, file) == before.end()) refuse(file, "was added");
  }
}

}  // namespace

std::string record_files(const std::vector<std::string>& files,
                         const std::vector<std::string>& readers) {
  json record = {{"files", json::array()}, {"readers", json::array()}};
  for (const auto& file : files) record["files"].push_back(entry_of(file));
  for (const auto& file : readers) record["readers"].push_back(entry_of(file));
  return record.dump(1) + "\n";
}

std::string sample_hash(const std::vector<std::string>& files) {
  const auto last = std::max<size_t>(files.size(), 1) - 1;
  const auto count = std::min<size_t>(files.size(), kPieces);
  std::string hashes;
  for (size_t i = 0; i < count; ++i) {
    const Descriptor file(files[count == 1 ? 0 : last * i / (count - 1)]);
    hashes += hash_of_pieces(file, file.size());
  }
  return fmt::format("{:016x}", XXH3_64bits(hashes.data(), hashes.size()));
}

void check_files(const std::string& record, const std::vector<std::string>& files,
                 const std::vector<std::string>& readers) {
  if (record.empty()) return;
  check_json_depth(record, "data", "data.json");
  const auto recorded = json::parse(record, nullptr, false);
  const auto is_list = [&](const char* key) {
    return recorded.is_object() && recorded.contains(key) && recorded[key].is_array();
  };
  if (!is_list("files")) {
    fail("data",
         "a run's data.json must be as the run wrote it, but is damaged: without the file, the run "
         "is resumed without a check of its data");
  }
  check_entries(recorded["files"], files);
  if (is_list("readers")) check_entries(recorded["readers"], readers);
}

}  // namespace perigee::data
