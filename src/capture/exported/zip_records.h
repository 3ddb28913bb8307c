// The directory of a zip file, read before its records are.
#pragma once

#include <string>

namespace perigee::exported {

// Throws Error where a record of the zip file at `path` is compressed or larger than the file:
// PyTorch writes records as they are, and a reader would take the memory that the file's directory
// asks for. Passes any file whose directory is not found or is damaged: the reader refuses it.
void check_records(const std::string& path);

}  // namespace perigee::exported
