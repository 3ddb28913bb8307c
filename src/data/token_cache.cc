#include "data/token_cache.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/durable_file.h"
#include "base/files/mapped_file.h"
#include "base/log_once.h"
#include "text/stream.h"

namespace perigee::data {
namespace {

// The version of the format of token files.
constexpr int kFormat = 1;

// The progress of a file from this size on is shown.
constexpr size_t kShownBytes = 8 << 20;

std::string hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Holds the folder's lock, so that one process of the host tokenizes and the others wait.
class Lock {
 public:
  explicit Lock(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_run("file", "{} must be written, but: {}", path, std::strerror(errno));
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      const int why = errno;
      ::close(fd_);
      fail_run("file", "{} must be lockable, but: {}", path, std::strerror(why));
    }
  }
  ~Lock() { ::close(fd_); }
  Lock(const Lock&) = delete;

 private:
  int fd_ = -1;
};

// Gives the text's ids as bytes, in pieces.
void write_ids(std::span<const std::byte> text, const text::Tokenizer& tokenizer, int width,
               const std::string& path, const std::function<void(std::string_view)>& write) {
  text::Stream stream;
  stream.read = text::reader_of({reinterpret_cast<const char*>(text.data()), text.size()});
  stream.take = [&](std::span<const int64_t> ids) {
    std::string bytes(ids.size() * static_cast<size_t>(width), '\0');
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<uint32_t>(ids[i]);  // little endian, as this machine
      std::memcpy(bytes.data() + i * static_cast<size_t>(width), &id, static_cast<size_t>(width));
    }
    write(bytes);
  };
  bool shown = false;
  stream.progress = [&](uint64_t done) {
    if (text.size() < kShownBytes) return;
    shown = log::progress(text::progress_line(path, done, text.size()));
  };
  text::encode_stream(tokenizer, stream);
  if (shown) log::progress("");
}

TokenBytes mapped(const std::string& file, int width) {
  auto tokens = map_file(file);
  return {std::move(tokens.owner), tokens.bytes, width};
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

TokenBytes tokenize_file(const std::string& path, const text::Tokenizer& tokenizer,
                         const TokenCache& cache) {
  const auto text = map_file(path);
  const int width = tokenizer.vocab() <= 65536 ? 2 : 4;
  const auto content = fmt::format("{} {} {}", kFormat, hash_of(text.bytes),
                                   hash_of(map_file(cache.model).bytes));
  const auto folder = cache.folder + "/tokens";
  const auto file = fmt::format("{}/{}.u{}", folder, hash_of(std::as_bytes(std::span(content))),
                                8 * width);
  try {
    if (cache.folder.empty()) fail_run("file", "neither XDG_CACHE_HOME nor HOME names a folder");
    if (exists(file)) return mapped(file, width);
    make_folders(folder);
    const Lock lock(folder + "/lock");
    if (!exists(file)) {
      DurableFile tokens(file);
      write_ids(text.bytes, tokenizer, width, path,
                [&](std::string_view bytes) { tokens.write(bytes); });
      tokens.finish();
    }
    return mapped(file, width);
  } catch (const Error& error) {
    if (error.status() == Status::invalid) throw;  // the tokenizer has no ids for the text
    if (cache.warn) {
      log::once(log::Level::warn,
                fmt::format("data: tokens are not cached, and every rank tokenizes for itself: {}",
                            error.what()));
    }
  }
  auto ids = std::make_shared<std::string>();
  write_ids(text.bytes, tokenizer, width, path, [&](std::string_view bytes) { *ids += bytes; });
  const auto bytes = std::as_bytes(std::span(*ids));
  return {std::move(ids), bytes, width};
}

}  // namespace perigee::data
