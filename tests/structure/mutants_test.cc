// The list of mutants (tests/mutants) fits the tree.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

Lines lines_of(const fs::path& path) {
  std::ifstream in(path);
  Lines lines;
  for (std::string line; std::getline(in, line);) lines.push_back(trimmed(line));
  return lines;
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator(in), {}};
}

// Returns the names of the test cases of a source, each between two line ends.
std::string names_of_cases(const std::string& source) {
  static const std::regex begin(R"re(TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+))re"),
      literal(R"re("((?:[^"\\]|\\.)*)")re");
  std::string names;
  for (std::sregex_iterator at(source.begin(), source.end(), begin), end; at != end; ++at) {
    const auto literals = (*at)[1].str();
    std::string name;
    for (std::sregex_iterator part(literals.begin(), literals.end(), literal); part != end;
         ++part) {
      name += (*part)[1];
    }
    names += "\n" + name + "\n";
  }
  return names;
}

// Returns the mutants of a list: the lines of each paragraph, without comments.
std::vector<Lines> mutants_of(const fs::path& list) {
  std::vector<Lines> mutants(1);
  for (const auto& line : lines_of(list)) {
    if (line.starts_with('#')) continue;
    if (!line.empty()) {
      mutants.back().push_back(line);
    } else if (!mutants.back().empty()) {
      mutants.emplace_back();
    }
  }
  if (mutants.back().empty()) mutants.pop_back();
  return mutants;
}

// Returns whether tests/FOLDER has the sources and the cases that the executable (tests_FOLDER or
// tests_FOLDER_PART), the tags of files and the patterns of names name.
bool names_tests(const fs::path& root, const std::string& line) {
  const auto folder = root / "tests" / line.substr(6, line.find_first_of(" _", 6) - 6);
  if (!line.starts_with("tests_") || !fs::is_directory(folder)) return false;
  std::set<std::string> sources;
  std::string cases;  // the names of all, each between line ends
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cc") continue;
    sources.insert(entry.path().stem().string());
    cases += names_of_cases(text_of(entry.path()));
  }
  const std::regex tag(R"(\[#(\w+)\])"), name("\"([^\"]*)\"");
  const auto all = [&](const std::regex& pattern, const auto& holds) {
    return std::all_of(std::sregex_iterator(line.begin(), line.end(), pattern),
                       std::sregex_iterator(),
                       [&](const std::smatch& match) { return holds(match[1].str()); });
  };
  return all(tag, [&](const std::string& file) { return sources.contains(file); }) &&
         all(name, [&](std::string pattern) {
           if (pattern.starts_with('[')) return true;
           pattern = "\n" + pattern + "\n";
           // Catch's patterns: a star at either end, and commas after a backslash.
           pattern = std::regex_replace(pattern, std::regex("^\n\\*|\\*\n$"), "");
           pattern = std::regex_replace(pattern, std::regex("\\\\,"), ",");
           return cases.find(pattern) != std::string::npos;
         });
}

// Returns the mutants that no longer fit the tree, and the number of all.
Lines stale_mutants(const fs::path& root, int& count) {
  Lines broken;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root / "tests/mutants")) {
    if (entry.path().extension() != ".txt") continue;
    for (const auto& mutant : mutants_of(entry.path())) {
      ++count;
      const auto wrong = [&](const std::string& rule) {
        broken.push_back(fmt::format("tests/mutants/{}: {}: {}", entry.path().filename().string(),
                                     mutant.front().substr(0, mutant.front().find(':')), rule));
      };
      if (mutant.size() < 5 || !mutant[2].starts_with("- ") || !mutant[3].starts_with("+ ")) {
        wrong("needs a name, a file, an old line, a new line and tests");
        continue;
      }
      if (!names.insert(mutant[0].substr(0, mutant[0].find(':'))).second) wrong("is there twice");
      const auto found = std::ranges::count(lines_of(root / mutant[1]), mutant[2].substr(2));
      if (found != 1) wrong(fmt::format("the old line is in {} {} times", mutant[1], found));
      if (mutant[2].substr(2) == mutant[3].substr(2)) wrong("changes nothing");
      if (!names_tests(root, mutant[4])) wrong("names no tests");
    }
  }
  std::ranges::sort(broken);
  return broken;
}

// Returns the folders of src/ without a mutant.
Lines folders_without_mutants(const fs::path& root) {
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(root / "src")) {
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  }
  for (const auto& entry : fs::directory_iterator(root / "tests/mutants")) {
    if (entry.path().extension() != ".txt") continue;
    for (const auto& mutant : mutants_of(entry.path())) {
      if (mutant.size() < 2 || !mutant[1].starts_with("src/")) continue;
      folders.erase(mutant[1].substr(4, mutant[1].find('/', 4) - 4));
    }
  }
  return {folders.begin(), folders.end()};
}

}  // namespace

TEST_CASE("every mutant of the list applies to one line and names tests") {
  int count = 0;
  CHECK(stale_mutants(".", count) == Lines{});
  CHECK(count >= 100);
  const perigee::test::Folder tree;
  tree.add("src/a.cc", "  return 1;\nint b;\nint b;\n");
  tree.add("tests/base/a_test.cc", "TEST_CASE(\n    \"a \"\n    \"case, twice\") {}\n");
  tree.add(
      "tests/mutants/a.txt",
      "# A comment.\n\ngood: a fault\nsrc/a.cc\n- return 1;\n+ return 2;\n"
      "tests_base -# \"[#a_test]\"\n\n"
      "case: a fault\nsrc/a.cc\n- return 1;\n+ return 2;\ntests_base \"a case\\, *\",\"*twice\"\n\n"
      "none: a fault\nsrc/a.cc\n- return 1;\n+ return 2;\ntests_base \"case*\"\n\n"
      "good: twice\nsrc/a.cc\n- return 3;\n+ return 3;\ntests_base -# \"[#b_test]\"\n\n"
      "many: a fault\nsrc/a.cc\n- int b;\n+ int c;\ntests_other\n\nshort: a fault\nsrc/a.cc\n");
  CHECK(
      stale_mutants(tree.path(), count) ==
      Lines{"tests/mutants/a.txt: good: changes nothing",
            "tests/mutants/a.txt: good: is there twice",
            "tests/mutants/a.txt: good: names no tests",
            "tests/mutants/a.txt: good: the old line is in src/a.cc 0 times",
            "tests/mutants/a.txt: many: names no tests",
            "tests/mutants/a.txt: many: the old line is in src/a.cc 2 times",
            "tests/mutants/a.txt: none: names no tests",
            "tests/mutants/a.txt: short: needs a name, a file, an old line, a new line and tests"});
}

TEST_CASE("every folder of src has a mutant") {
  CHECK(folders_without_mutants(".") == Lines{});
  const perigee::test::Folder tree;
  for (const char* file : {"src/base/a.cc", "src/mesh/a.cc", "src/plan/a.cc", "src/perigee.h"}) {
    tree.add(file, "int a;\n");
  }
  tree.add("tests/mutants/a.txt",
           "one: a fault\nsrc/mesh/a.cc\n- int a;\n+ int b;\ntests_base\n\nshort: a fault\n");
  CHECK(folders_without_mutants(tree.path()) == Lines{"base", "plan"});
}
