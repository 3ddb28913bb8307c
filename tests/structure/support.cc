#include "tests/structure/support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>

namespace perigee::structure {
namespace {

namespace fs = std::filesystem;

// A folder may include itself and what stands before it.
const std::vector<std::string> kFolders{
    "base",    "graph",  "mesh", "job",     "plan",    "solve", "shard",   "cost",  "methods",
    "compile", "search", "lua",  "capture", "binding", "exec",  "profile", "train", "cuda"};

// Headers that a pattern matches may be included in these folders only.
struct Home {
  std::regex pattern;
  std::set<std::string> folders;
};

const std::vector<Home>& homes() {
  static const std::vector<Home> homes{
      {std::regex("^(torch|ATen|c10)/"),
       {"capture", "binding", "exec", "profile", "train", "cuda"}},
      {std::regex("^spdlog/"), {"base"}},
      {std::regex("^(lua|lualib|lauxlib|luajit|lua\\.hpp)"), {"lua", "binding"}},
      {std::regex("^(cuda|nccl|cublas)"), {"cuda"}},
  };
  return homes;
}

struct Include {
  std::string folder;  // of src/, that includes
  std::string where;   // path:line
  std::string header;
  bool quoted;
};

std::vector<fs::path> files_below(const fs::path& folder, const std::set<std::string>& endings) {
  std::vector<fs::path> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && endings.count(entry.path().extension().string())) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void each_include(const fs::path& root, const std::function<void(const Include&)>& visit) {
  static const std::regex directive("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"].*");
  for (const auto& path : files_below(root / "src", {".h", ".cc", ".cu", ".cuh"})) {
    const auto inside = path.lexically_relative(root / "src");
    // src/perigee.h stands above all folders: it is what embedders include.
    if (!inside.has_parent_path()) continue;
    std::ifstream in(path);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      std::smatch match;
      if (!std::regex_match(line, match, directive)) continue;
      visit({inside.begin()->string(),
             fmt::format("{}:{}", path.lexically_relative(root).string(), number), match[2],
             match[1] == "\""});
    }
  }
}

size_t position(const std::string& folder) {
  return std::find(kFolders.begin(), kFolders.end(), folder) - kFolders.begin();
}

// Returns the folders of src/ that src/README.md lists, in its order.
std::vector<std::string> documented_folders(const fs::path& root) {
  static const std::regex row("^    src/([a-z]+) .*");
  std::vector<std::string> folders;
  std::ifstream in(root / "src/README.md");
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, row)) folders.push_back(match[1]);
  }
  return folders;
}

}  // namespace

std::vector<std::string> folder_order(const fs::path& root) {
  std::vector<std::string> broken;
  if (const auto listed = documented_folders(root); listed != kFolders) {
    broken.push_back(fmt::format("src/README.md: lists the folders {}", fmt::join(listed, " ")));
  }
  each_include(root, [&](const Include& include) {
    if (position(include.folder) == kFolders.size()) {
      broken.push_back(
          fmt::format("{}: src/{} is not a known folder", include.where, include.folder));
      return;
    }
    if (!include.quoted) return;
    const std::string target = include.header.substr(0, include.header.find('/'));
    if (position(target) == kFolders.size()) {
      broken.push_back(fmt::format("{}: \"{}\" does not start with a folder of src/", include.where,
                                   include.header));
    } else if (position(target) > position(include.folder)) {
      broken.push_back(
          fmt::format("{}: {} may not include {}", include.where, include.folder, target));
    }
  });
  return broken;
}

std::vector<std::string> foreign_headers(const fs::path& root) {
  std::vector<std::string> broken;
  each_include(root, [&](const Include& include) {
    for (const auto& home : homes()) {
      if (!include.quoted && std::regex_search(include.header, home.pattern) &&
          !home.folders.count(include.folder)) {
        broken.push_back(fmt::format("{}: {} may not include <{}>", include.where, include.folder,
                                     include.header));
      }
    }
  });
  return broken;
}

std::vector<std::string> strategies(const fs::path& root) {
  std::vector<std::string> broken;
  std::string tests;
  for (const auto& path : files_below(root / "tests/command", {".cc"})) {
    std::ifstream in(path);
    tests.append(std::istreambuf_iterator<char>(in), {});
  }
  for (const auto& path : files_below(root / "strategies", {".lua"})) {
    const auto name = path.lexically_relative(root).string();
    std::ifstream in(path);
    std::string line;
    int count = 0;
    while (std::getline(in, line)) {
      if (++count == 1 && !line.starts_with("--")) {
        broken.push_back(name + ": must start with a comment");
      }
    }
    if (count > 40) broken.push_back(fmt::format("{}: has {} lines, at most 40", name, count));
    if (path.parent_path() != root / "strategies") continue;
    const std::regex trained("(strategy |\")" + path.stem().string() + "[\" ]");
    if (!std::regex_search(tests, trained)) {
      broken.push_back(name + ": must be trained by a test in tests/command");
    }
  }
  return broken;
}

std::vector<std::string> top_level(const fs::path& root) {
  static const std::set<std::string> expected{"CMakeLists.txt", "README.md",  "LICENSE", "src",
                                              "scripts",        "strategies", "runtime", "tests",
                                              "tools"};
  std::vector<std::string> broken;
  for (const auto& name : expected) {
    if (!fs::exists(root / name)) broken.push_back(name + ": is missing");
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    const auto name = entry.path().filename().string();
    const bool made = name == "build" || name.starts_with("build-") || name == "runs";
    if (!expected.count(name) && !name.starts_with(".") && !made) {
      broken.push_back(name + ": does not belong to the top level");
    }
  }
  std::sort(broken.begin(), broken.end());
  return broken;
}

}  // namespace perigee::structure
