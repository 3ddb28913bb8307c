// Checkpoints in a folder of a file system: files are synced, then renamed; links are not followed.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
namespace {

// A file that is written under its own name: a folder of a checkpoint is renamed once it is whole.
class FileWriter : public ObjectWriter {
 public:
  explicit FileWriter(const std::string& path) : path_(path), fd_(create_file(path)) {
    if (fd_ < 0) refuse();
  }
  ~FileWriter() override {
    if (fd_ < 0) return;
    ::close(fd_);
    discard();
  }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse();
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void finish() override {
    if (::fsync(fd_) != 0 && errno != EINVAL) refuse();
    if (::close(std::exchange(fd_, -1)) != 0) {
      discard();
      refuse();
    }
  }

 private:
  // Removes the incomplete file; a device or a pipe stays.
  void discard() const {
    std::error_code ignored;
    if (fs::is_regular_file(path_, ignored)) ::unlink(path_.c_str());
  }
  [[noreturn]] void refuse() const {
    fail_run("file", "{} must be written, but: {}", path_, std::strerror(errno));
  }

  std::string path_;
  int fd_;
};

class FolderTarget : public Target {
 public:
  void put(const std::string& path, std::string_view text) override { write_durably(path, text); }

  std::unique_ptr<ObjectWriter> create(const std::string& path, uint64_t) override {
    return std::make_unique<FileWriter>(path);
  }

  std::optional<uint64_t> size(const std::string& path) override {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error) return std::nullopt;
    return bytes;
  }

  void read(const std::string& path, uint64_t offset, std::span<std::byte> out) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) refuse_reading(path, std::strerror(errno));
    std::string why;
    for (size_t done = 0; done < out.size() && why.empty();) {
      const auto got = ::pread(fd, out.data() + done, out.size() - done,
                               static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) why = std::strerror(errno);
      if (got == 0) why = fmt::format("it ends after {} bytes", offset + done);
      if (got > 0) done += static_cast<size_t>(got);
    }
    ::close(fd);
    if (!why.empty()) refuse_reading(path, why);
  }

  std::string read_all(const std::string& path) override { return read_file(path, "checkpoint"); }

  void remove(const std::string& path) override {
    std::error_code error;
    fs::remove(path, error);
    if (error) fail_run("file", "{} must be removed, but: {}", path, error.message());
  }

  std::vector<Entry> list(const std::string& folder) override {
    std::vector<Entry> found;
    std::error_code error, ignored;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      found.push_back({it->path().filename().string(), it->is_directory(ignored)});
    }
    return found;
  }

  void make_folder(const std::string& folder) override { make_folders(folder); }

  bool has_folder(const std::string& folder) override {
    std::error_code ignored;
    return fs::is_directory(folder, ignored);
  }

  void remove_folder(const std::string& folder) override {
    std::error_code ignored;
    fs::remove(folder, ignored);  // stays where it holds files
  }

  void sync_folder(const std::string& folder) override { perigee::sync_folder(folder); }

  void move_folder(const std::string& from, const std::string& to, const std::string&) override {
    rename_durably(from, to);
  }

  bool moves_at_once() const override { return true; }
  bool is_local() const override { return true; }

 private:
  [[noreturn]] static void refuse_reading(const std::string& path, std::string_view why) {
    fail("checkpoint", "{} must be read, but: {}", path, why);
  }
};

}  // namespace

std::unique_ptr<Target> folder_target() { return std::make_unique<FolderTarget>(); }

}  // namespace perigee::checkpoint
