// Files and folders that are on the disk when a function returns, and never incomplete.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

// Each throws Error (failed) naming the path and the system's reason.

// Makes a folder and its parents.
void make_folders(const std::string& path);

// A file that is written as `path`.partial and then renamed: a crash leaves the old file or the new
// one. The target of a link is replaced. A device or a pipe is written to directly.
class Destination {
 public:
  explicit Destination(const std::string& path);
  const std::string& written() const { return written_; }
  void rename() const;   // once all is written
  void discard() const;  // after a failure

 private:
  std::string path_, written_;
};

// Creates a file for writing and returns its descriptor, or -1 with errno. A file of that
// name is removed, and so is a link to one, which is not followed; a device or pipe is opened.
int create_file(const std::string& path);

// Throws as write_durably would where its folder is missing or cannot be written, or `path` is a
// folder; changes nothing.
void require_writable(const std::string& path);

// Writes a file to its destination; it is on disk when this returns.
void write_durably(const std::string& path, std::string_view text);

// Renames a file or folder within one folder.
void rename_durably(const std::string& from, const std::string& to);

// Waits until the names in a folder are on the disk, if this process may read the folder.
void sync_folder(const std::string& path);

}  // namespace perigee
