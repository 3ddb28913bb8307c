#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/structure/support.h"

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

namespace {

// Tests run in the source folder.
const fs::path kSource = ".";

// A temporary source tree for negative controls.
class TestTree {
 public:
  TestTree() : root_(fs::temp_directory_path() / fmt::format("perigee-structure-{}", getpid())) {
    fs::create_directories(root_);
  }
  ~TestTree() { fs::remove_all(root_); }
  void add(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

}  // namespace

TEST_CASE("a folder includes only from folders above it") {
  CHECK(perigee::structure::folder_order(kSource) == Lines{});
  TestTree tree;
  tree.add("src/graph/a.cc", "#include \"base/error.h\"\n  #  include \"plan/plan.h\"\n");
  tree.add("src/graph/b.cc", "#include <vector>\n#include \"a.h\"\n");
  tree.add("src/misc/c.h", "#include <vector>\n");
  tree.add("src/README.md", "    src/base       errors\n    src/perigee.h  all\n");
  CHECK(perigee::structure::folder_order(tree.root()) ==
        Lines{"src/README.md: lists the folders base",
              "src/graph/a.cc:2: graph may not include plan",
              "src/graph/b.cc:2: \"a.h\" does not start with a folder of src/",
              "src/misc/c.h:1: src/misc is not a known folder"});
}

TEST_CASE("subfolders of train include only earlier ones in the path of a task") {
  CHECK(perigee::structure::train_order(kSource) == Lines{});
  TestTree tree;
  tree.add("src/train/README.md", "`task/`, `plan/`\n");
  tree.add("src/train/task/a.h", "#include \"train/plan/b.h\"\n#include \"plan/plan.h\"\n");
  tree.add("src/train/plan/b.h", "#include \"train/task/a.h\"\n#include \"train/host.h\"\n");
  CHECK(perigee::structure::train_order(tree.root()) ==
        Lines{"src/train/task/a.h:1: task stands before plan"});
}

TEST_CASE("headers of LibTorch, spdlog, Lua and CUDA stay where they belong") {
  CHECK(perigee::structure::foreign_headers(kSource) == Lines{});
  TestTree tree;
  tree.add("src/plan/a.cc",
           "#include <ATen/ATen.h>\n#include <lua.hpp>\n#include <spdlog/spdlog.h>\n");
  tree.add("src/exec/b.cc", "#include <torch/torch.h>\n#include <cuda_runtime.h>\n");
  CHECK(perigee::structure::foreign_headers(tree.root()) ==
        Lines{"src/exec/b.cc:2: exec may not include <cuda_runtime.h>",
              "src/plan/a.cc:1: plan may not include <ATen/ATen.h>",
              "src/plan/a.cc:2: plan may not include <lua.hpp>",
              "src/plan/a.cc:3: plan may not include <spdlog/spdlog.h>"});
}

TEST_CASE("headers that applications include do not include fmt") {
  CHECK(perigee::structure::public_headers_with_fmt(kSource) == Lines{});
  TestTree tree;
  tree.add("src/perigee.h", "#include \"plan/plan.h\"\n");
  tree.add("src/plan/plan.h", "#include \"base/fail.h\"\n#include <vector>\n");
  tree.add("src/base/fail.h", "#include <fmt/format.h>\n");
  tree.add("src/base/text.h", "#include <fmt/format.h>\n");
  CHECK(perigee::structure::public_headers_with_fmt(tree.root()) ==
        Lines{"src/base/fail.h:1: a public header may not include <fmt/format.h>"});
}

TEST_CASE("only exec/op_threads.cc sets LibTorch's number of threads") {
  CHECK(perigee::structure::unsafe_thread_numbers(kSource) == Lines{});
  TestTree tree;
  tree.add("src/exec/op_threads.cc", "at::set_num_threads(1);\n");
  tree.add("tests/exec/a.cc", "\n  at::set_num_threads(1);\n");
  CHECK(perigee::structure::unsafe_thread_numbers(tree.root()) ==
        Lines{"tests/exec/a.cc:2: must call exec::set_op_threads"});
}

TEST_CASE("no folder lists more than 25 files") {
  CHECK(perigee::structure::crowded_folders(kSource) == Lines{});
  TestTree tree;
  for (int i = 0; i < 26; ++i) tree.add(fmt::format("src/plan/{}.cc", i), "");
  for (int i = 0; i < 25; ++i) tree.add(fmt::format("tests/plan/{}.cc", i), "");
  CHECK(perigee::structure::crowded_folders(tree.root()) ==
        Lines{"src/plan: lists 26 files, at most 25"});
}

TEST_CASE("a folder with more than five files has a README of at most ten lines") {
  CHECK(perigee::structure::folder_pages(kSource) == Lines{});
  TestTree tree;
  for (int i = 0; i < 6; ++i) tree.add(fmt::format("src/plan/{}.cc", i), "");
  for (int i = 0; i < 6; ++i) tree.add(fmt::format("tests/plan/{}.json", i), "");
  tree.add("src/mesh/README.md", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n");
  tree.add("src/base/a.cc", "");
  CHECK(perigee::structure::folder_pages(tree.root()) ==
        Lines{"src/mesh/README.md: has 11 lines, at most 10",
              "src/plan: has 6 files and no README.md"});
}

TEST_CASE("a page that is not generated has at most 250 lines") {
  CHECK(perigee::structure::long_pages(kSource) == Lines{});
  TestTree tree;
  std::string text;
  for (int i = 0; i < 251; ++i) text += "line\n";
  tree.add("runtime/a.md", text);
  tree.add("runtime/b.md", "Made by `perigee lua --reference`.\n" + text);
  CHECK(perigee::structure::long_pages(tree.root()) ==
        Lines{"runtime/a.md: has 251 lines, at most 250"});
}

TEST_CASE("no comment of several lines ends in a line of one word") {
  CHECK(perigee::structure::one_word_lines(kSource) == Lines{});
  TestTree tree;
  const std::string begin = "// " + std::string(75, 'a') + "\n";
  tree.add("src/base/a.h", begin + "// word\n" + begin + "// two words\n// word\n");
  CHECK(perigee::structure::one_word_lines(tree.root()) ==
        Lines{"src/base/a.h:2: one word on the last line of a comment"});
}

TEST_CASE("ctest runs each test case: no name has a semicolon or an escaped comma") {
  CHECK(perigee::structure::split_case_names(kSource) == Lines{});
  TestTree tree;
  tree.add(
      "tests/base/a_test.cc",
      "TEST_CASE(\n    \"one; two\") {}\nTEST_CASE(\"a\\\\, b\") {}\nTEST_CASE(\"a, b\") {}\n");
  CHECK(perigee::structure::split_case_names(tree.root()) ==
        Lines{"tests/base/a_test.cc: ctest does not run \"one; two\"",
              "tests/base/a_test.cc: ctest does not run \"a\\\\, b\""});
}

TEST_CASE("a shipped strategy is short, has a header comment, and is trained by a test") {
  CHECK(perigee::structure::strategies(kSource) == Lines{});
  TestTree tree;
  tree.add("strategies/parallel/a.lua", "return {}\n");
  std::string text = "-- Long.\n";
  for (int i = 0; i < 40; ++i) text += "local x\n";
  tree.add("strategies/parallel/b.lua", text);
  tree.add("tests/command/a_test.cc", "good(\"--strategy b\"); good(\"--strategy ab\");\n");
  CHECK(perigee::structure::strategies(tree.root()) ==
        Lines{"strategies/parallel/a.lua: must start with a comment",
              "strategies/parallel/a.lua: must be trained by a test in tests/command",
              "strategies/parallel/b.lua: has 41 lines, at most 40"});
}

TEST_CASE("the index of strategies names each strategy and job") {
  CHECK(perigee::structure::strategy_index(kSource) == Lines{});
  TestTree tree;
  tree.add("strategies/a.toml", "");
  tree.add("strategies/parallel/b.lua", "");
  tree.add("strategies/parallel/c.lua", "");
  tree.add("strategies/README.md", "- `b`: one\n");
  CHECK(perigee::structure::strategy_index(tree.root()) ==
        Lines{"strategies/README.md: does not name a.toml",
              "strategies/README.md: does not name `c`"});
}

TEST_CASE("the top level holds exactly the entries that the README lists") {
  CHECK(perigee::structure::top_level(kSource) == Lines{});
  TestTree tree;
  for (const auto* name : {"README.md", "LICENSE", "Makefile", "src/a", "scripts/a", "strategies/a",
                           "runtime/a", "tests/a", "tools/a", "build/a", ".clang-format"}) {
    tree.add(name, "");
  }
  CHECK(perigee::structure::top_level(tree.root()) ==
        Lines{"CMakeLists.txt: is missing", "Makefile: does not belong to the top level"});
}
