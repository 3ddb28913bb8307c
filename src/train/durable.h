// Files and folders that are on the disk when a function returns, and never half there.
#pragma once

#include <string>
#include <string_view>

namespace perigee::train {

// Each throws Error (failed) naming the path and the system's reason.

// Makes a folder and those above it.
void make_folders(const std::string& path);

// Writes a file beside (`path`.partial) and renames it; a crash leaves the old file or the new one.
void write_durably(const std::string& path, std::string_view text);

// Renames a file or folder within one folder.
void rename_durably(const std::string& from, const std::string& to);

// Waits until the names in a folder are on the disk.
void sync_folder(const std::string& path);

}  // namespace perigee::train
