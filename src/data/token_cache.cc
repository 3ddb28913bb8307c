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
#include "base/log_once.h"
#include "base/terminal/progress.h"
#include "text/documents/byte_source.h"
#include "text/stream.h"

namespace perigee::data {
namespace {

// The version of the format of token files.
constexpr int kFormat = 1;

// The progress of a file from this size on is shown.
constexpr size_t kShownBytes = 8 << 20;

std::string hex(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Holds the folder's lock, so that one process of the host tokenizes and the others wait.
class Lock {
 public:
  explicit Lock(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
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

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

std::string hash_of_text(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

std::string hash_of_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto refuse = [&](int why) {
    if (fd >= 0) ::close(fd);
    fail("file", "{} must be a readable file, but: {}", path, std::strerror(why));
  };
  if (fd < 0) refuse(errno);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::string piece(1 << 20, '\0');
  for (;;) {
    const auto count = ::read(fd, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(errno);
    if (count == 0) break;
    XXH3_128bits_update(state.get(), piece.data(), static_cast<size_t>(count));
  }
  ::close(fd);
  return hex(XXH3_128bits_digest(state.get()));
}

void append_ids(std::span<const int64_t> ids, int width, std::string& bytes) {
  const auto bytes_of_id = static_cast<size_t>(width);
  auto at = bytes.size();
  bytes.resize(at + ids.size() * bytes_of_id);
  for (const auto wide : ids) {
    const auto id = static_cast<uint32_t>(wide);  // little endian, as this machine
    std::memcpy(bytes.data() + at, &id, bytes_of_id);
    at += bytes_of_id;
  }
}

MappedFile cached(const TokenCache& cache, const std::string& name,
                  const std::function<void(const WriteBytes&)>& make) {
  const auto folder = cache.folder + "/tokens";
  const auto file = folder + "/" + name;
  try {
    if (cache.folder.empty()) fail_run("file", "neither XDG_CACHE_HOME nor HOME names a folder");
    if (exists(file)) return map_file(file);
    make_folders(folder);
    const Lock lock(folder + "/lock");
    if (!exists(file)) {
      DurableFile tokens(file);
      make([&](std::string_view bytes) { tokens.write(bytes); });
      tokens.finish();
    }
    return map_file(file);
  } catch (const Error& error) {
    if (error.status() == Status::invalid) throw;  // the input is wrong
    if (cache.warn) {
      log::once(log::Level::warn,
                fmt::format("data: tokens are not cached, and every rank tokenizes for itself: {}",
                            error.what()));
    }
  }
  auto made = std::make_shared<std::string>();
  make([&](std::string_view bytes) { *made += bytes; });
  const auto bytes = std::as_bytes(std::span(*made));
  return {std::move(made), bytes};
}

TokenBytes tokenize_file(const std::string& path, const text::Tokenizer& tokenizer,
                         const TokenCache& cache) {
  const int width = tokenizer.vocab() <= 65536 ? 2 : 4;
  const auto model = cache.model == "bytes" ? cache.model : hash_of_file(cache.model);
  const auto content = fmt::format("{} {} {}", kFormat, hash_of_file(path), model);
  const auto name = fmt::format("{}.u{}", hash_of_text(content), 8 * width);
  auto made = cached(cache, name, [&](const WriteBytes& write) {
    const auto source = text::open_bytes(path);
    const auto all = text::size_of_file(path);
    bool shown = false;
    text::Stream stream;
    stream.read = [&](char* to, size_t most) { return source->read(to, most); };
    stream.take = [&](std::span<const int64_t> ids) {
      std::string bytes;
      append_ids(ids, width, bytes);
      write(bytes);
    };
    stream.progress = [&](uint64_t) {
      if (all < kShownBytes) return;
      const auto done = source->position();
      shown = log::progress({.text = text::progress_line(path, done, all),
                             .share = double(done) / double(all),
                             .details = {}});
    };
    text::encode_stream(tokenizer, stream);
    if (shown) log::progress("");
  });
  return {std::move(made.owner), made.bytes, width};
}

}  // namespace perigee::data
