// The rules of the source tree, as functions from a folder to the lines that break them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace perigee::structure {

// Each returns one line per violation in the tree at `root`, sorted; an empty list means that the
// rule holds.

// A folder of src/ includes only itself and folders above it, in the order of src/README.md
// section 9, which lists each of them.
std::vector<std::string> folder_order(const std::filesystem::path& root);

// Headers of LibTorch, spdlog, Lua and CUDA are included only where they belong.
std::vector<std::string> foreign_headers(const std::filesystem::path& root);

// A shipped strategy has at most 40 lines and starts with a comment.
std::vector<std::string> strategies(const std::filesystem::path& root);

// The top level holds exactly what the README lists, and dot files; build and run folders are not
// part of the tree.
std::vector<std::string> top_level(const std::filesystem::path& root);

}  // namespace perigee::structure
