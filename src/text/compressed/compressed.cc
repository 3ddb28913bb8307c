// Files of gzip and Zstandard, uncompressed as they are read. A plugin, so that the command loads
// neither library where no file is compressed.
#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "base/fail.h"
#include "text/documents/byte_source.h"

namespace perigee::text {
namespace {

constexpr size_t kPiece = 1 << 18;  // bytes that are read from the file at once

// The compressed bytes.
class Input {
 public:
  Input(std::unique_ptr<ByteSource> from, const std::string& path, const char* name)
      : from_(std::move(from)), path_(path), name_(name), bytes_(kPiece) {}

  // Returns whether there are bytes, after those before have been used.
  bool fill() {
    if (used == filled) {
      filled = from_->read(bytes_.data(), bytes_.size());
      used = 0;
    }
    return used < filled;
  }
  char* data() { return bytes_.data(); }
  uint64_t position() const { return from_->position(); }

  [[noreturn]] void damaged(const char* why) const {
    fail("data", "{} must be a complete file of {}, but: {}", path_, name_, why);
  }
  [[noreturn]] void cut_short() const { damaged("it is cut short"); }

  size_t used = 0, filled = 0;

 private:
  std::unique_ptr<ByteSource> from_;
  std::string path_;
  const char* name_;
  std::vector<char> bytes_;
};

class Gzip : public ByteSource {
 public:
  explicit Gzip(Input input) : input_(std::move(input)) {
    if (::inflateInit2(&stream_, 15 + 16) != Z_OK) input_.damaged("zlib does not start");
  }
  ~Gzip() override { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;

  size_t read(char* to, size_t most) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(most, 1U << 30));
    const auto wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (!input_.fill()) {
        if (within_member_) input_.cut_short();
        break;
      }
      // A file may have several members, and end with zeros.
      if (!within_member_ && after_member_ && input_.data()[input_.used] == 0) {
        ++input_.used;
        continue;
      }
      within_member_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + input_.used);
      stream_.avail_in = static_cast<uInt>(input_.filled - input_.used);
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      input_.used = input_.filled - stream_.avail_in;
      if (status == Z_STREAM_END) {
        within_member_ = false;
        after_member_ = true;
        if (::inflateReset(&stream_) != Z_OK) input_.damaged("zlib does not start");
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        input_.damaged(stream_.msg ? stream_.msg : "its data are wrong");
      }
    }
    return wanted - stream_.avail_out;
  }
  uint64_t position() const override { return input_.position(); }

 private:
  Input input_;
  z_stream stream_{};
  bool within_member_ = false, after_member_ = false;
};

class Zstd : public ByteSource {
 public:
  explicit Zstd(Input input) : input_(std::move(input)), stream_(::ZSTD_createDStream()) {
    if (!stream_) input_.damaged("libzstd does not start");
  }
  ~Zstd() override { ::ZSTD_freeDStream(stream_); }
  Zstd(const Zstd&) = delete;

  size_t read(char* to, size_t most) override {
    ZSTD_outBuffer out{to, most, 0};
    while (out.pos == 0) {
      // Bytes may remain within the library after its input ended.
      const bool any = input_.fill();
      ZSTD_inBuffer in{input_.data(), input_.filled, input_.used};
      const auto left = ::ZSTD_decompressStream(stream_, &out, &in);
      if (::ZSTD_isError(left) != 0) input_.damaged(::ZSTD_getErrorName(left));
      input_.used = in.pos;
      if (!any && out.pos == 0) {
        if (!complete_) input_.cut_short();
        break;
      }
      complete_ = left == 0;
    }
    return out.pos;
  }
  uint64_t position() const override { return input_.position(); }

 private:
  Input input_;
  ZSTD_DStream* stream_;
  bool complete_ = true;  // no frame is open
};

}  // namespace
}  // namespace perigee::text

extern "C" void perigee_uncompress(std::unique_ptr<perigee::text::ByteSource> from,
                                   const std::string& path, perigee::text::Compression compression,
                                   std::unique_ptr<perigee::text::ByteSource>& to) {
  using namespace perigee::text;
  if (compression == Compression::gzip) {
    to = std::make_unique<Gzip>(Input(std::move(from), path, "gzip"));
  } else {
    to = std::make_unique<Zstd>(Input(std::move(from), path, "Zstandard"));
  }
}
