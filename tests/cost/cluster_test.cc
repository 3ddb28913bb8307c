#include "cost/cluster.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "cost/cpu_links.h"
#include "cost/op_time.h"

using namespace perigee;
using cost::CollectiveKind;
using graph::DType;

namespace {

// 2 nodes of 4 ranks: 1 us and 100 GB/s within a node, 10 us and 10 GB/s between nodes.
const std::string kText = R"(format = "perigee.cluster/1"
name = "small"
[[device]]
name = "d"
count = 8
memory = 1e9
bandwidth = 1e12
launch = 1e-6
peak = { float32 = 1e12, bfloat16 = 4e12 }
vector = 5e11
matrix_efficiency = 0.5
attention_efficiency = 0.25
memory_efficiency = 0.5
source = "a test"
[[link]]
level = "node"
ranks = 4
latency = 1e-6
bandwidth = 1e11
source = "a test"
[[link]]
level = "fabric"
ranks = 8
latency = 10e-6
bandwidth = 1e10
source = "a test"
)";

std::string replaced(const std::string& from, const std::string& to) {
  auto text = kText;
  text.replace(text.find(from), from.size(), to);
  return text;
}

std::string error_of(const std::string& text) {
  try {
    cost::parse_cluster(text, "c.toml");
  } catch (const Error& error) {
    CHECK(error.status() == Status::invalid);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every shipped cluster parses, links all its ranks and names its sources") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("runtime/clusters")) {
    if (entry.path().extension() != ".toml") continue;
    const auto cluster = cost::load_cluster(entry.path().string());
    CAPTURE(entry.path().string());
    CHECK(cluster.name == entry.path().stem());
    for (const auto& device : cluster.devices) CHECK_FALSE(device.source.empty());
    for (const auto& link : cluster.links) CHECK_FALSE(link.source.empty());
    CHECK(cluster.level(0, cluster.ranks() - 1) == static_cast<int>(cluster.links.size()) - 1);
    ++count;
  }
  CHECK(count >= 8);
}

TEST_CASE("an error in a cluster description names its place") {
  CHECK(error_of(replaced("bandwidth = 1e12", "bandwith = 1e12")) ==
        "[cluster] c.toml:3:1: device needs the key bandwidth, but it is missing");
  CHECK(error_of(replaced("vector = 5e11", "vektor = 5e11")) ==
        "[cluster] c.toml:10:1: device has no key \"vektor\", did you mean \"vector\"?");
  CHECK(error_of(replaced("memory = 1e9", "memory = -1")) ==
        "[cluster] c.toml:6:10: device.memory must be a finite number above 0, but got -1");
  CHECK(error_of(replaced("memory = 1e9", "memory = nan")) ==
        "[cluster] c.toml:6:10: device.memory must be a finite number above 0, but got nan");
  CHECK(error_of(replaced("float32 = 1e12, ", "")) ==
        "[cluster] c.toml:9:8: device.peak needs float32, which types without a peak fall back to");
  CHECK(error_of(replaced("ranks = 8", "ranks = 6")) ==
        "[cluster] c.toml:21:1: levels go from the inside out, and each joins whole blocks of the "
        "one before, but 6 ranks of fabric follow 4");
  CHECK(error_of(replaced("count = 8", "count = 16")) ==
        "[cluster] c.toml: all ranks must be joined, but rank 8 has no link with rank 0: add a "
        "[[link]] with ranks = 16");
  CHECK(error_of("format = ").starts_with("[cluster] c.toml:1:"));
}

TEST_CASE("devices with one name have one description") {
  const auto begin = kText.find("[[device]]"), end = kText.find("[[link]]");
  const auto twice = [&](const std::string& second) {
    auto text = kText;
    text.replace(text.find("count = 8"), 9, "count = 4");
    auto device = text.substr(begin, end - begin);
    device.replace(device.find("vector = 5e11"), 13, second);
    return text.insert(begin, device);
  };
  CHECK(cost::parse_cluster(twice("vector = 5e11"), "c.toml").devices.size() == 2);
  CHECK_THAT(error_of(twice("vector = 4e11")),
             Catch::Contains("two different ones are called \"d\""));
}

TEST_CASE("the level of two ranks is the innermost one that contains both") {
  const auto cluster = cost::parse_cluster(kText, "c.toml");
  CHECK(cluster.ranks() == 8);
  CHECK(cluster.level(0, 3) == 0);
  CHECK(cluster.level(3, 4) == 1);
  CHECK(cost::level_of(cluster, {2}) == -1);
  CHECK(cost::level_of(cluster, {0, 1, 2}) == 0);
  CHECK(cost::level_of(cluster, {0, 4}) == 1);
  CHECK_THROWS_AS(cluster.device(8), Error);
}

TEST_CASE("a ring takes its latencies and the transfer time of the slowest level") {
  const auto cluster = cost::parse_cluster(kText, "c.toml");
  const auto time = [&](CollectiveKind kind, double bytes, std::vector<int64_t> group) {
    return cost::collective_seconds(cluster, kind, bytes, group);
  };
  const double mb = 1e8;
  CHECK(time(CollectiveKind::all_reduce, mb, {0}) == 0);
  CHECK(time(CollectiveKind::all_gather, mb, {0, 1, 2, 3}) == Approx(3e-6 + mb * 0.75 / 1e11));
  CHECK(time(CollectiveKind::all_reduce, mb, {0, 1, 2, 3}) ==
        Approx(2 * (3e-6 + mb * 0.75 / 1e11)));
  CHECK(time(CollectiveKind::message, mb, {3, 4}) == Approx(10e-6 + mb / 1e10));
  // One rank of each node uses the fabric alone; with all ranks, each transfers its share.
  CHECK(time(CollectiveKind::all_reduce, mb, {0, 4}) == Approx(2 * (10e-6 + mb * 0.5 / 1e10)));
  CHECK(time(CollectiveKind::all_reduce, mb, {0, 1, 2, 3, 4, 5, 6, 7}) ==
        Approx(2 * (3e-6 + mb * 0.75 / 1e11) + 2 * (10e-6 + mb / 4 * 0.5 / 1e10)));
  // Small all-reduces use a tree, up and down.
  CHECK(time(CollectiveKind::all_reduce, 8, {0, 1, 2, 3}) == Approx(2 * 2e-6 + 2 * 8 / 1e11));
  CHECK(time(CollectiveKind::all_to_all, mb, {0, 1, 2, 3}) == Approx(2e-6 + mb * 0.75 / 1e11));
}

TEST_CASE("ranks of one node use its links, whatever levels are around it") {
  auto text = kText;
  text.replace(text.find("count = 8"), 9, "count = 16");
  text += R"([[link]]
level = "spine"
ranks = 16
latency = 20e-6
bandwidth = 5e9
source = "a test"
)";
  const auto cluster = cost::parse_cluster(text, "c.toml");
  const double bytes = 1e8;
  // Four ranks of one node in each of two fabrics.
  CHECK(cost::collective_seconds(cluster, CollectiveKind::all_gather, bytes,
                                 {0, 1, 2, 3, 8, 9, 10, 11}) ==
        Approx(20e-6 + bytes / 4 * 0.5 / 5e9 + 3e-6 + bytes * 0.75 / 1e11));
  CHECK(cost::collective_seconds(cluster, CollectiveKind::all_gather, bytes, {0, 1, 2, 3}) ==
        Approx(3e-6 + bytes * 0.75 / 1e11));
}

TEST_CASE("groups that span the same levels take the same time") {
  const auto cluster = cost::parse_cluster(kText, "c.toml");
  using Group = std::vector<int64_t>;
  CHECK(cost::shape_of(cluster, {3}) == Group{-1});
  CHECK(cost::shape_of(cluster, {0, 2}) == cost::shape_of(cluster, {5, 6}));
  CHECK(cost::shape_of(cluster, {0, 2}) != cost::shape_of(cluster, {3, 4}));
  CHECK(cost::shape_of(cluster, {0, 1, 4, 5}) != cost::shape_of(cluster, {0, 1, 2, 5}));
  std::map<Group, double> seconds;
  int equal_shapes = 0;
  for (int mask = 3; mask < 256; ++mask) {
    Group group;
    for (int64_t rank = 0; rank < 8; ++rank) {
      if (mask >> rank & 1) group.push_back(rank);
    }
    auto shape = cost::shape_of(cluster, group);
    shape.push_back(std::ssize(group));
    const double own = cost::collective_seconds(cluster, CollectiveKind::all_reduce, 1e6, group);
    const auto [known, added] = seconds.try_emplace(shape, own);
    CHECK(known->second == own);
    equal_shapes += !added;
  }
  CHECK(equal_shapes > 100);
}

TEST_CASE("more bytes and more ranks never take less time") {
  const auto cluster = cost::load_cluster("runtime/clusters/128x8xh100.toml");
  for (const auto kind :
       {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
        CollectiveKind::all_to_all, CollectiveKind::broadcast}) {
    CAPTURE(cost::name_of(kind));
    for (const int64_t stride : {1, 8, 64}) {
      double last = 0;
      for (double bytes = 8; bytes < 1e10; bytes *= 3) {
        std::vector<int64_t> group;
        for (int64_t i = 0; i < 16; ++i) group.push_back(i * stride);
        const double now = cost::collective_seconds(cluster, kind, bytes, group);
        CHECK(now > last);
        last = now;
      }
    }
  }
}

TEST_CASE("an op takes the longer of arithmetic and memory time, at least its launch") {
  const auto device = cost::parse_cluster(kText, "c.toml").devices.front();
  const auto seconds = [&](cost::OpWork work) {
    const auto time = cost::estimate(work, device);
    CHECK_FALSE(time.measured);
    return time.seconds;
  };
  CHECK(seconds({}) == 0);
  CHECK(seconds({1e9, 10, true, DType::float32}) == Approx(1e-6 + 1e9 / 5e11));
  CHECK(seconds({1e9, 10, true, DType::bfloat16}) == Approx(1e-6 + 1e9 / 2e12));
  CHECK(seconds({1e9, 10, true, DType::float16}) == Approx(1e-6 + 1e9 / 5e11));
  CHECK(seconds({1e6, 1e9, false, DType::float32}) == Approx(1e-6 + 1e9 / 5e11));
  CHECK(seconds({1e9, 10, true, DType::float32, true}) == Approx(1e-6 + 1e9 / 2.5e11));
}

TEST_CASE("an efficiency is at most 1") {
  for (const std::string key : {"matrix_efficiency", "memory_efficiency"}) {
    const auto with = [&](const char* value) {
      return cost::parse_cluster(replaced(key + " = 0.5", key + " = " + value), "c.toml");
    };
    CHECK_NOTHROW(with("1.0"));
    CHECK_THROWS_WITH(with("1.01"), Catch::Contains("at most 1, but got 1.01"));
  }
}

TEST_CASE("attention has the efficiency of products by default") {
  const auto cluster = cost::parse_cluster(replaced("attention_efficiency = 0.25\n", ""), "c.toml");
  CHECK(cluster.devices.front().attention_efficiency == 0.5);
}

TEST_CASE("ranks of one CPU host take the times of shared memory, or of Gloo") {
  auto cluster = cost::cpu_cluster(2, 8e9);
  const auto microseconds = [&](double bytes) {
    return 1e6 * cost::collective_seconds(cluster, CollectiveKind::all_reduce, bytes, {0, 1});
  };
  // Of tools/bench/results/comm.json: 2.1 us and 16.4 ms.
  CHECK(microseconds(4 << 10) == Approx(2.1).epsilon(0.05));
  CHECK(microseconds(128 << 20) == Approx(16400).epsilon(0.05));
  REQUIRE(cluster.links == std::vector{cost::shared_memory_link(2)});
  cluster.links = {cost::gloo_link(2)};
  CHECK(microseconds(4) == Approx(240).epsilon(0.05));
  CHECK(microseconds(1 << 20) == Approx(750).epsilon(0.05));
  CHECK(cost::cpu_cluster(1, 8e9).links.empty());
}
