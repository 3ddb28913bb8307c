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

// A tree of its own in which a rule can be broken.
class Planted {
 public:
  Planted() : root_(fs::temp_directory_path() / fmt::format("perigee-structure-{}", getpid())) {
    fs::create_directories(root_);
  }
  ~Planted() { fs::remove_all(root_); }
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
  Planted tree;
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

TEST_CASE("headers of LibTorch, spdlog, Lua and CUDA stay where they belong") {
  CHECK(perigee::structure::foreign_headers(kSource) == Lines{});
  Planted tree;
  tree.add("src/plan/a.cc",
           "#include <ATen/ATen.h>\n#include <lua.hpp>\n#include <spdlog/spdlog.h>\n");
  tree.add("src/exec/b.cc", "#include <torch/torch.h>\n#include <cuda_runtime.h>\n");
  CHECK(perigee::structure::foreign_headers(tree.root()) ==
        Lines{"src/exec/b.cc:2: exec may not include <cuda_runtime.h>",
              "src/plan/a.cc:1: plan may not include <ATen/ATen.h>",
              "src/plan/a.cc:2: plan may not include <lua.hpp>",
              "src/plan/a.cc:3: plan may not include <spdlog/spdlog.h>"});
}

TEST_CASE("a shipped strategy is short, says what it is, and is trained by a test") {
  CHECK(perigee::structure::strategies(kSource) == Lines{});
  Planted tree;
  tree.add("strategies/a.lua", "return {}\n");
  std::string text = "-- Long.\n";
  for (int i = 0; i < 40; ++i) text += "local x\n";
  tree.add("strategies/b.lua", text);
  tree.add("tests/command/a_test.cc", "good(\"--strategy b\"); good(\"--strategy ab\");\n");
  CHECK(perigee::structure::strategies(tree.root()) ==
        Lines{"strategies/a.lua: must start with a comment",
              "strategies/a.lua: must be trained by a test in tests/command",
              "strategies/b.lua: has 41 lines, at most 40"});
}

TEST_CASE("the top level holds what the README lists and nothing else") {
  CHECK(perigee::structure::top_level(kSource) == Lines{});
  Planted tree;
  for (const auto* name : {"README.md", "LICENSE", "Makefile", "src/a", "scripts/a", "strategies/a",
                           "runtime/a", "tests/a", "tools/a", "build/a", ".clang-format"}) {
    tree.add(name, "");
  }
  CHECK(perigee::structure::top_level(tree.root()) ==
        Lines{"CMakeLists.txt: is missing", "Makefile: does not belong to the top level"});
}
