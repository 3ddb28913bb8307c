#include "cost/cluster.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"
#include "base/text/toml.h"
#include "cost/cpu_links.h"

namespace perigee::cost {
namespace {

std::string at(const toml::source_region& region, const std::string& file) {
  return fmt::format("{}:{}:{}: ", file, region.begin.line, region.begin.column);
}

// Reads one table; unknown keys are errors.
class Table {
 public:
  Table(const toml::table& table, std::string what, const std::string& file)
      : table_(table), what_(std::move(what)), file_(file) {}

  std::string place() const { return at(table_.source(), file_); }

  std::string text(const char* key, bool required) {
    const auto* node = take(key, required);
    if (!node) return "";
    if (const auto* value = node->as_string()) return value->get();
    fail("cluster", "{}{}.{} must be a string", at(node->source(), file_), what_, key);
  }

  // A finite number above 0 (or at least 0).
  double number(const char* key, bool required, double otherwise, bool zero = false) {
    const auto* node = take(key, required);
    return node ? value_of(*node, key, zero) : otherwise;
  }

  int64_t count(const char* key, bool required, int64_t otherwise) {
    const double value = number(key, required, static_cast<double>(otherwise));
    if (value != std::floor(value) || value > 1 << 20) {
      fail("cluster", "{}{}.{} must be a whole number up to 2^20, but got {}",
           at(table_.get(key)->source(), file_), what_, key, value);
    }
    return static_cast<int64_t>(value);
  }

  double value_of(const toml::node& node, std::string_view key, bool zero) const {
    const auto value = node.value<double>();
    if (!value || !std::isfinite(*value) || *value < 0 || (*value == 0 && !zero)) {
      fail("cluster", "{}{}.{} must be a finite number {} 0, but got {}", at(node.source(), file_),
           what_, key, zero ? "of at least" : "above",
           value ? fmt::format("{}", *value) : "no number");
    }
    return *value;
  }

  const toml::node* take(const char* key, bool required) {
    known_.emplace_back(key);
    const auto* node = table_.get(key);
    if (!node && required) {
      fail("cluster", "{}{} needs the key {}, but it is missing", place(), what_, key);
    }
    return node;
  }

  void end() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      fail("cluster", "{}{} has no key \"{}\"{}", at(key.source(), file_), what_, name,
           did_you_mean(name, known_));
    }
  }

 private:
  const toml::table& table_;
  std::string what_;
  const std::string& file_;
  std::vector<std::string> known_;
};

DeviceSpec read_device(const toml::table& table, const std::string& file) {
  Table t(table, "device", file);
  DeviceSpec device;
  device.name = t.text("name", true);
  device.count = t.count("count", false, 1);
  device.memory = t.number("memory", true, 0);
  device.bandwidth = t.number("bandwidth", true, 0);
  device.launch = t.number("launch", false, 0, true);
  device.host = t.number("host", false, device.host);
  device.source = t.text("source", true);
  const auto* peaks = t.take("peak", true);
  if (!peaks->is_table()) {
    fail("cluster", "{}device.peak must be a table of flops/s by dtype, but is none",
         at(peaks->source(), file));
  }
  for (const auto& [key, node] : *peaks->as_table()) {
    const auto dtype = graph::dtype_of(key.str());
    if (!dtype || !graph::is_floating(*dtype)) {
      fail("cluster", "{}device.peak has dtypes such as bfloat16, but got \"{}\"",
           at(key.source(), file), key.str());
    }
    device.peak[*dtype] = t.value_of(node, fmt::format("peak.{}", key.str()), false);
  }
  if (!device.peak.contains(graph::DType::float32)) {
    fail("cluster", "{}device.peak needs float32, which types without a peak fall back to",
         at(peaks->source(), file));
  }
  device.vector = t.number("vector", false, device.peak_of(graph::DType::float32));
  device.matrix_efficiency = t.number("matrix_efficiency", false, 1);
  device.attention_efficiency = t.number("attention_efficiency", false, device.matrix_efficiency);
  device.memory_efficiency = t.number("memory_efficiency", false, 1);
  for (const double share :
       {device.matrix_efficiency, device.attention_efficiency, device.memory_efficiency}) {
    if (share <= 1) continue;
    fail("cluster", "{}device: an efficiency is a share of a peak, at most 1, but got {}",
         t.place(), share);
  }
  t.end();
  return device;
}

Link read_link(const toml::table& table, const std::string& file) {
  Table t(table, "link", file);
  Link link;
  link.level = t.text("level", true);
  link.ranks = t.count("ranks", true, 1);
  link.latency = t.number("latency", true, 0, true);
  link.bandwidth = t.number("bandwidth", true, 0);
  link.source = t.text("source", true);
  t.end();
  return link;
}

template <class T>
std::vector<T> read_list(Table& root, const char* key, const std::string& file, bool required,
                         T (*read)(const toml::table&, const std::string&)) {
  std::vector<T> list;
  const auto* node = root.take(key, required);
  if (!node) return list;
  const auto* array = node->as_array();
  const bool tables = array && std::all_of(array->begin(), array->end(),
                                           [](auto& n) { return n.is_table(); });
  if (!tables) fail("cluster", "{}[[{}]] is a list of tables", at(node->source(), file), key);
  for (const auto& item : *array) list.push_back(read(*item.as_table(), file));
  return list;
}

// Measured times are kept by device name.
void check_kinds(const std::vector<DeviceSpec>& devices, const std::string& file) {
  std::map<std::string, DeviceSpec> known;
  for (auto device : devices) {
    device.count = 1;
    device.source.clear();
    const auto& first = known.try_emplace(device.name, device).first->second;
    if (first == device) continue;
    fail("cluster",
         "{}: devices of one name must be equal, but two different ones are called \"{}\"", file,
         device.name);
  }
}

}  // namespace

double DeviceSpec::peak_of(graph::DType dtype) const {
  const auto own = peak.find(dtype);
  return own != peak.end() ? own->second : peak.at(graph::DType::float32);
}

int64_t Cluster::ranks() const {
  return std::accumulate(devices.begin(), devices.end(), int64_t{0},
                         [](int64_t sum, const DeviceSpec& device) { return sum + device.count; });
}

const DeviceSpec& Cluster::device(int64_t rank) const {
  int64_t end = 0;
  for (const auto& device : devices) {
    end += device.count;
    if (rank >= 0 && rank < end) return device;
  }
  fail("cluster", "ranks of {} are below {}, but got {}", name, ranks(), rank);
}

int Cluster::level(int64_t a, int64_t b) const {
  for (size_t l = 0; l < links.size(); ++l) {
    if (a / links[l].ranks == b / links[l].ranks) return static_cast<int>(l);
  }
  fail("cluster", "no link of {} joins rank {} with rank {}: add a level whose ranks are {}", name,
       a, b, ranks());
}

double Cluster::least_memory() const {
  double least = devices.front().memory;
  for (const auto& device : devices) least = std::min(least, device.memory);
  return least;
}

bool multiplies_eight_bits(const Cluster& cluster) {
  return std::all_of(cluster.devices.begin(), cluster.devices.end(), [](const DeviceSpec& device) {
    return device.peak.contains(graph::DType::float8_e4m3);
  });
}

Cluster parse_cluster(std::string_view text, const std::string& file) {
  check_toml(text, "cluster", file);
  toml::table parsed;
  try {
    parsed = toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    fail("cluster", "{}{}", at(e.source(), file), e.description());
  }
  Table root(parsed, "a cluster", file);
  if (const auto format = root.text("format", true); format != "perigee.cluster/1") {
    fail("cluster", "{}format must be \"perigee.cluster/1\", but got \"{}\"",
         at(parsed.get("format")->source(), file), format);
  }
  Cluster cluster;
  cluster.name = root.text("name", true);
  cluster.devices = read_list<DeviceSpec>(root, "device", file, true, read_device);
  cluster.links = read_list<Link>(root, "link", file, false, read_link);
  root.end();
  if (cluster.devices.empty()) fail("cluster", "{}: at least one [[device]] is needed", file);
  check_kinds(cluster.devices, file);
  int64_t before = 1;
  for (size_t l = 0; l < cluster.links.size(); ++l) {
    const auto& link = cluster.links[l];
    if (link.ranks % before == 0 && link.ranks > before) {
      before = link.ranks;
      continue;
    }
    fail("cluster",
         "{}levels go from the inside out, and each joins whole blocks of the one before, but {} "
         "ranks of {} follow {}",
         at(parsed["link"][l].node()->source(), file), link.ranks, link.level, before);
  }
  if (before < cluster.ranks()) {
    fail("cluster",
         "{}: all ranks must be joined, but rank {} has no link with rank 0: add a [[link]] with "
         "ranks = {}",
         file, before, cluster.ranks());
  }
  return cluster;
}

Cluster load_cluster(const std::string& file) {
  return parse_cluster(read_file(file, "cluster"), file);
}

std::vector<std::string> shipped_clusters(const std::string& runtime_folder) {
  std::vector<std::string> files;
  const auto folder = std::filesystem::path(runtime_folder) / "clusters";
  if (!runtime_folder.empty() && std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string find_cluster(const std::string& name, const std::string& runtime_folder) {
  if (is_file(name)) return name;
  std::vector<std::string> names;
  for (const auto& file : shipped_clusters(runtime_folder)) {
    names.push_back(std::filesystem::path(file).stem().string());
    if (names.back() == name) return file;
  }
  fail("cluster", "a cluster is a file or the name of a shipped description, but there is no {}{}",
       name, did_you_mean(name, names));
}

Cluster cpu_cluster(int64_t ranks, double memory) {
  DeviceSpec core;
  core.name = "CPU core";
  core.count = ranks;
  core.memory = memory / static_cast<double>(ranks);
  core.bandwidth = 8e9;
  core.launch = 1e-6;
  // 2.5 GHz, two fused multiply-adds of 8 (AVX2) float32.
  core.peak = {{graph::DType::float32, 80e9}, {graph::DType::float64, 40e9}};
  core.vector = 5e9;
  core.matrix_efficiency = core.attention_efficiency = 0.7;
  core.memory_efficiency = 0.8;
  core.source = "typical figures of one core";
  Cluster cluster{.name = "this machine's CPU", .devices = {core}, .assumed = true};
  if (ranks > 1) cluster.links.push_back(shared_memory_link(ranks));
  return cluster;
}

}  // namespace perigee::cost
