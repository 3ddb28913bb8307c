// Rules of the source tree. Each function returns the violations in a tree.
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

// Returns the places where a header that perigee.h includes, directly or not, includes fmt.
std::vector<std::string> public_headers_with_fmt(const std::filesystem::path& root);

// A subfolder of src/train includes only itself and the subfolders that src/train/README.md names
// before it.
std::vector<std::string> train_order(const std::filesystem::path& root);

// Headers of LibTorch, spdlog, Lua and CUDA are included only where they belong.
std::vector<std::string> foreign_headers(const std::filesystem::path& root);

// at::set_num_threads is called by src/exec/op_threads.cc alone, in src and in tests.
std::vector<std::string> unsafe_thread_numbers(const std::filesystem::path& root);

// No folder lists more than 25 files.
std::vector<std::string> crowded_folders(const std::filesystem::path& root);

// A folder with more than five files, except JSON data and inputs of fuzzers, has a README.md. A
// README.md has at most ten lines, except indices: src, runtime, runtime/methods, strategies.
std::vector<std::string> folder_pages(const std::filesystem::path& root);

// A page has at most 250 lines (src/README.md: 300, runtime/README.md: 60), unless a command
// prints it.
std::vector<std::string> long_pages(const std::filesystem::path& root);

// The name of no test case has a semicolon, at which CMake's list of cases splits it, or a comma
// after backslashes, to which CMake adds one: ctest would pass without running the case.
std::vector<std::string> split_case_names(const std::filesystem::path& root);

// No comment of several lines ends in a line of one word.
std::vector<std::string> one_word_lines(const std::filesystem::path& root);

// A shipped strategy has at most 40 lines and starts with a comment.
std::vector<std::string> strategies(const std::filesystem::path& root);

// strategies/README.md has at most 80 lines and names each shipped strategy and job.
std::vector<std::string> strategy_index(const std::filesystem::path& root);

// The top level holds exactly what the README lists, and dot files; build and run folders are not
// part of the tree.
std::vector<std::string> top_level(const std::filesystem::path& root);

}  // namespace perigee::structure
