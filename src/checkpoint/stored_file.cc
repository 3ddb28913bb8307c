#include "checkpoint/stored_file.h"

#include <algorithm>
#include <map>

#include "checkpoint/checksum.h"
#include "checkpoint/safetensors.h"

namespace perigee::checkpoint {
namespace {

class LocalFile : public StoredFile {
 public:
  explicit LocalFile(const std::string& path) : file_(path) {}

  std::optional<uint64_t> bytes_of(const std::string& tensor) const override {
    const auto* found = file_.find(tensor);
    if (!found) return std::nullopt;
    return found->bytes.size();
  }
  std::span<const std::byte> read(const std::string& tensor, uint64_t offset,
                                  uint64_t bytes) override {
    return file_.find(tensor)->bytes.subspan(offset, bytes);
  }
  uint64_t most_bytes() const override { return 0; }
  bool is_checked() const override { return true; }
  std::string checksum() override { return file_.checksum(); }

 private:
  SafetensorsFile file_;
};

// A file whose ranges are requested from a service.
class RemoteFile : public StoredFile {
 public:
  RemoteFile(Target& target, std::string path, uint64_t bytes)
      : target_(target), path_(std::move(path)), bytes_(bytes) {
    const auto start = fetch(0, std::min<uint64_t>(bytes, 8));
    const auto length = header_bytes(start, bytes, path_);
    const auto header = read_header(fetch(0, length), bytes, path_);
    for (size_t i = 0; i < header.tensors.size(); ++i) {
      places_[header.tensors[i].name] = header.places[i];
    }
  }

  std::optional<uint64_t> bytes_of(const std::string& tensor) const override {
    const auto found = places_.find(tensor);
    if (found == places_.end()) return std::nullopt;
    return found->second.bytes;
  }
  std::span<const std::byte> read(const std::string& tensor, uint64_t offset,
                                  uint64_t bytes) override {
    return fetch(places_.at(tensor).offset + offset, bytes);
  }
  uint64_t most_bytes() const override { return kMost; }
  bool is_checked() const override { return false; }
  std::string checksum() override {
    Checksum checksum;
    for (uint64_t at = 0; at < bytes_; at += kMost) {
      checksum.add(fetch(at, std::min(kMost, bytes_ - at)));
    }
    return checksum.text();
  }

 private:
  static constexpr uint64_t kMost = 32ULL << 20U;

  std::span<const std::byte> fetch(uint64_t offset, uint64_t bytes) {
    buffer_.resize(bytes);
    target_.read(path_, offset, buffer_);
    return buffer_;
  }

  Target& target_;
  std::string path_;
  uint64_t bytes_;
  std::map<std::string, SafetensorsHeader::Place> places_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::unique_ptr<StoredFile> open_stored(Target& target, const std::string& path, uint64_t bytes) {
  if (target.is_local()) return std::make_unique<LocalFile>(path);
  return std::make_unique<RemoteFile>(target, path, bytes);
}

}  // namespace perigee::checkpoint
