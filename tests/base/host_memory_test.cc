// Limits of control groups, read from files as Linux has them.
#include "base/host_memory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

using perigee::usable_memory;
namespace fs = std::filesystem;

namespace {

// A folder with files, removed at the end.
class Root {
 public:
  explicit Root(const std::map<std::string, std::string>& files) {
    auto name = (fs::temp_directory_path() / "perigee-memory-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    path_ = name;
    for (const auto& [file, text] : files) {
      fs::create_directories((path_ / file).parent_path());
      std::ofstream(path_ / file) << text << "\n";
    }
  }
  ~Root() { fs::remove_all(path_); }
  double memory() const { return usable_memory(path_.string()); }

 private:
  fs::path path_;
};

const std::string kSecond = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n";
const std::string kFirst =
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 23 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";

}  // namespace

TEST_CASE("without a control group's limit a process may use the machine's memory") {
  const double all = Root({}).memory();
  CHECK(all > 1 << 20);
  CHECK(Root({{"proc/self/cgroup", "0::/a"},
              {"proc/self/mountinfo", kSecond},
              {"sys/fs/cgroup/a/memory.max", "max"},
              {"sys/fs/cgroup/a/memory.high", "max"}})
            .memory() == all);
  CHECK(Root({{"proc/self/cgroup", "4:memory:/a"},
              {"proc/self/mountinfo", kFirst},
              {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712"}})
            .memory() == all);
  CHECK(usable_memory() <= all);
}

TEST_CASE("the least limit of a process's control group and those above it counts") {
  const std::map<std::string, std::string> nested = {
      {"proc/self/cgroup", "0::/slice/job"},
      {"proc/self/mountinfo", kSecond},
      {"sys/fs/cgroup/slice/memory.max", "max"},
      {"sys/fs/cgroup/slice/memory.high", "300000"},
      {"sys/fs/cgroup/slice/job/memory.max", "500000"},
      {"sys/fs/cgroup/slice/job/memory.high", "max"},
      {"sys/fs/cgroup/other/memory.max", "1"}};
  CHECK(Root(nested).memory() == 300000);
  auto tighter = nested;
  tighter["sys/fs/cgroup/slice/job/memory.max"] = "200000";
  CHECK(Root(tighter).memory() == 200000);
  CHECK(Root({{"proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/docker/job"},
              {"proc/self/mountinfo", kFirst},
              {"sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "400000"},
              {"sys/fs/cgroup/memory/docker/job/memory.limit_in_bytes", "700000"}})
            .memory() == 400000);
}

TEST_CASE("a container whose own control group is the topmost one finds its limit") {
  // The mount shows the group /docker/job of the host; only the host's /proc names it.
  CHECK(Root({{"proc/self/cgroup", "4:memory:/docker/job/inner"},
              {"proc/self/mountinfo",
               "32 23 0:28 /docker/job /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"},
              {"sys/fs/cgroup/memory/memory.limit_in_bytes", "600000"},
              {"sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712"}})
            .memory() == 600000);
  CHECK(Root({{"proc/self/cgroup", "0::/"},
              {"proc/self/mountinfo", kSecond},
              {"sys/fs/cgroup/memory.max", "800000"}})
            .memory() == 800000);
}
