// The bytes of a file in order, uncompressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace perigee::text {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads at most `most` bytes and returns their number; 0: the file ends. Throws Error naming the
  // file where it cannot be read, or is damaged.
  virtual size_t read(char* to, size_t most) = 0;
  // Returns how many bytes of the file, as it is on the disk, have been read.
  virtual uint64_t position() const = 0;
};

// Opens a file, also a pipe. Files that begin as those of gzip and Zstandard do are uncompressed.
// Throws Error where it cannot be read, or is compressed otherwise, or is Parquet.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// Returns whether open_bytes uncompresses the file. Throws Error as it does.
bool is_compressed(const std::string& path);

// Returns the file's bytes on the disk; 0 for one that is no regular file.
uint64_t size_of_file(const std::string& path);

enum class Compression { gzip, zstd };

// A source that uncompresses the bytes of another one (plugin perigee_compressed).
using Uncompress = void (*)(std::unique_ptr<ByteSource> from, const std::string& path,
                            Compression compression, std::unique_ptr<ByteSource>& to);

}  // namespace perigee::text
