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

// A folder may include itself and earlier folders of the list.
const std::vector<std::string> kFolders{"base",     "text",       "graph",   "mesh",     "optim",
                                        "job",      "plan",       "solve",   "shard",    "cost",
                                        "schedule", "methods",    "compile", "simulate", "search",
                                        "lua",      "view",       "capture", "binding",  "exec",
                                        "profile",  "checkpoint", "data",    "train",    "cuda"};

// Headers that match the pattern may be included in these folders only.
struct Home {
  std::regex pattern;
  std::set<std::string> folders;
};

const std::vector<Home>& homes() {
  static const std::vector<Home> homes{
      {std::regex("^(torch|ATen|c10)/"),
       {"capture", "binding", "exec", "profile", "data", "checkpoint", "train", "cuda"}},
      {std::regex("^spdlog/"), {"base"}},
      {std::regex("^(lua|lualib|lauxlib|luajit|lua\\.hpp)"), {"lua", "binding"}},
      {std::regex("^(cuda|nccl|cublas)"), {"cuda"}},
      {std::regex("^httplib"), {"view", "train"}},
  };
  return homes;
}

struct Include {
  std::string folder;  // the including folder of src/
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
    // src/perigee.h may include all folders: embedders include it.
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

std::vector<std::string> public_headers_with_fmt(const fs::path& root) {
  static const std::regex directive("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"].*");
  std::vector<std::string> broken, unread{"perigee.h"};
  std::set<std::string> known{"perigee.h"};
  while (!unread.empty()) {
    const auto header = unread.back();
    unread.pop_back();
    std::ifstream in(root / "src" / header);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      std::smatch match;
      if (!std::regex_match(line, match, directive)) continue;
      const std::string target = match[2];
      if (target.starts_with("fmt/")) {
        broken.push_back(
            fmt::format("src/{}:{}: a public header may not include <{}>", header, number, target));
      } else if (match[1] == "\"" && known.insert(target).second) {
        unread.push_back(target);
      }
    }
  }
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

std::vector<std::string> unsafe_thread_numbers(const fs::path& root) {
  std::vector<std::string> broken;
  for (const char* folder : {"src", "tests"}) {
    for (const auto& path : files_below(root / folder, {".h", ".cc"})) {
      const auto name = path.lexically_relative(root).string();
      if (name == "src/exec/op_threads.cc" || name.starts_with("tests/structure/")) continue;
      std::ifstream in(path);
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        if (line.find("at::set_num_threads(") == std::string::npos) continue;
        broken.push_back(fmt::format("{}:{}: must call exec::set_op_threads", name, number));
      }
    }
  }
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
    if (path.parent_path().filename() == "published") continue;  // published plans
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

namespace {

// Calls visit(folder, names of its files) for every folder of the tree's own files.
void each_folder(
    const fs::path& root,
    const std::function<void(const fs::path&, const std::vector<std::string>&)>& visit) {
  for (const auto* top : {"src", "tests", "tools", "runtime", "strategies", "scripts", ".cmake"}) {
    if (!fs::exists(root / top)) continue;
    std::vector<fs::path> folders{root / top};
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.is_directory()) folders.push_back(entry.path());
    }
    std::sort(folders.begin(), folders.end());
    for (const auto& folder : folders) {
      std::vector<std::string> files;
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_regular_file()) files.push_back(entry.path().filename().string());
      }
      visit(folder.lexically_relative(root), files);
    }
  }
}

size_t count_lines(const fs::path& path) {
  std::ifstream in(path);
  return static_cast<size_t>(
      std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n'));
}

// Pages that a command generates have any length.
bool is_generated(const fs::path& path) {
  std::ifstream in(path);
  std::string line, head;
  for (int i = 0; i < 5 && std::getline(in, line); ++i) head += line + "\n";
  return head.find("Made by `") != std::string::npos ||
         head.find("made from the table") != std::string::npos;
}

}  // namespace

std::vector<std::string> crowded_folders(const fs::path& root) {
  std::vector<std::string> broken;
  each_folder(root, [&](const fs::path& folder, const std::vector<std::string>& files) {
    if (files.size() > 25) {
      broken.push_back(
          fmt::format("{}: lists {} files, at most 25", folder.string(), files.size()));
    }
  });
  return broken;
}

std::vector<std::string> folder_pages(const fs::path& root) {
  std::vector<std::string> broken;
  const std::set<std::string> indices = {"src", "runtime", "runtime/methods", "strategies"};
  each_folder(root, [&](const fs::path& folder, const std::vector<std::string>& files) {
    const auto page = root / folder / "README.md";
    const auto name = folder.string();
    if (!fs::exists(page)) {
      const bool only_data = std::ranges::all_of(files, [&](const auto& file) {
        return file.ends_with(".json") || name.starts_with("tests/fuzz/corpus/");
      });
      if (files.size() > 5 && !only_data)
        broken.push_back(fmt::format("{}: has {} files and no README.md", name, files.size()));
    } else if (!indices.contains(name) && count_lines(page) > 10) {
      broken.push_back(
          fmt::format("{}/README.md: has {} lines, at most 10", name, count_lines(page)));
    }
  });
  return broken;
}

std::vector<std::string> long_pages(const fs::path& root) {
  std::vector<std::string> broken;
  for (const auto* top : {"src", "tests", "tools", "runtime", "strategies"}) {
    for (const auto& path : files_below(root / top, {".md"})) {
      const auto most = path == root / "src/README.md"       ? 300u
                        : path == root / "runtime/README.md" ? 60u
                                                             : 250u;
      if (is_generated(path) || count_lines(path) <= most) continue;
      broken.push_back(fmt::format("{}: has {} lines, at most {}",
                                   path.lexically_relative(root).string(), count_lines(path),
                                   most));
    }
  }
  return broken;
}

std::vector<std::string> strategy_index(const fs::path& root) {
  std::vector<std::string> broken;
  const fs::path page = root / "strategies/README.md";
  std::ifstream in(page);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const auto& path : files_below(root / "strategies", {".lua", ".toml"})) {
    const bool is_job = path.extension() == ".toml";
    // The jobs of published plans have their strategies' names.
    if (is_job && path.parent_path() != root / "strategies") continue;
    const auto name = is_job ? path.filename().string() : "`" + path.stem().string() + "`";
    if (text.find(name) == std::string::npos) {
      broken.push_back("strategies/README.md: does not name " + name);
    }
  }
  if (fs::exists(page) && count_lines(page) > 80) {
    broken.push_back(
        fmt::format("strategies/README.md: has {} lines, at most 80", count_lines(page)));
  }
  return broken;
}

std::vector<std::string> train_order(const fs::path& root) {
  std::ifstream in(root / "src/train/README.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  const auto position = [&](const std::string& name) { return page.find("`" + name + "/`"); };
  std::vector<std::string> broken;
  each_include(root, [&](const Include& include) {
    const auto from = fs::path(include.where).lexically_relative("src/train");
    const auto to = fs::path(include.header).lexically_relative("train");
    if (include.folder != "train" || *to.begin() == "..") return;
    if (!from.has_parent_path() || !to.has_parent_path()) return;
    if (position(*from.begin()) < position(*to.begin())) {
      broken.push_back(fmt::format("{}: {} stands before {}", include.where, from.begin()->string(),
                                   to.begin()->string()));
    }
  });
  return broken;
}

std::vector<std::string> split_case_names(const fs::path& root) {
  std::vector<std::string> broken;
  const std::regex name(R"re(TEST_CASE\(\s*((?:"[^"]*"\s*)*"[^"]*(?:;|\\\\,)[^"]*"))re");
  for (const auto& path : files_below(root / "tests", {".cc"})) {
    std::ifstream in(path);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found) {
      broken.push_back(fmt::format("{}: ctest does not run {}",
                                   path.lexically_relative(root).string(), (*found)[1].str()));
    }
  }
  return broken;
}

std::vector<std::string> one_word_lines(const fs::path& root) {
  const std::regex comment(R"(\s*// \S.*)"), one_word(R"(\s*// \S+)");
  std::vector<std::string> broken;
  for (const auto* top : {"src", "tests", "tools"}) {
    for (const auto& path : files_below(root / top, {".h", ".cc", ".cu"})) {
      std::ifstream in(path);
      std::string line, before;
      for (int number = 1; std::getline(in, line); ++number) {
        const bool long_comment = before.size() > 70 && std::regex_match(before, comment);
        if (long_comment && std::regex_match(line, one_word)) {
          broken.push_back(fmt::format("{}:{}: one word on the last line of a comment",
                                       path.lexically_relative(root).string(), number));
        }
        before = line;
      }
    }
  }
  return broken;
}

}  // namespace perigee::structure
