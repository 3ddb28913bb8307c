#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace perigee {
namespace {

namespace fs = std::filesystem;

// A hierarchy of control groups that may limit memory, and the process's group in it.
struct Hierarchy {
  bool second = false;  // version
  std::string group;    // "/a/b"
};

// Reads /proc/self/cgroup: lines of id:controllers:group; version 2 has no controllers.
std::vector<Hierarchy> hierarchies_of(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") found.push_back({true, line.substr(second + 1)});
    if (controllers.find(",memory,") != std::string::npos) {
      found.push_back({false, line.substr(second + 1)});
    }
  }
  return found;
}

struct Mount {
  std::string group;  // the group that is its topmost folder
  std::string folder;
};

// Reads /proc/self/mountinfo: id parent device group folder options ... - type source options.
std::optional<Mount> mount_of(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string ignored, type, options;
    Mount mount;
    front >> ignored >> ignored >> ignored >> mount.group >> mount.folder;
    back >> type >> ignored >> options;
    const bool memory = ("," + options + ",").find(",memory,") != std::string::npos;
    if (hierarchy.second ? type == "cgroup2" : type == "cgroup" && memory) return mount;
  }
  return std::nullopt;
}

// Returns the number in a file; nothing for "max" and files that cannot be read.
std::optional<double> number_in(const fs::path& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

double limit_of(const Hierarchy& hierarchy, const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  const auto mount = mount_of(hierarchy, root);
  if (!mount) return least;
  auto group = hierarchy.group;
  // A container may see its own group as the topmost one.
  if (mount->group != "/" && group.starts_with(mount->group)) group.erase(0, mount->group.size());
  const fs::path top(root + mount->folder);
  for (fs::path below = fs::path(group).relative_path();; below = below.parent_path()) {
    const auto names = hierarchy.second ? std::vector<const char*>{"memory.max", "memory.high"}
                                        : std::vector<const char*>{"memory.limit_in_bytes"};
    for (const auto* name : names)
      least = std::min(least, number_in(top / below / name).value_or(least));
    if (below.empty()) return least;
  }
}

}  // namespace

double usable_memory(const std::string& root) {
  double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                 static_cast<double>(::sysconf(_SC_PAGESIZE));
  for (const auto& hierarchy : hierarchies_of(root)) {
    bytes = std::min(bytes, limit_of(hierarchy, root));
  }
  return bytes;
}

}  // namespace perigee
