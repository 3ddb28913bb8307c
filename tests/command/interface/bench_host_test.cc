// tools/bench/host/bench_host: its list of rows, and its messages for bad input. What it measures
// needs PyTorch and minutes.
#include <catch2/catch.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

Ran bench_host(std::vector<std::string> options, const How& how = {}) {
  options.insert(options.begin(), {"python3", "tools/bench/host/bench_host"});
  return Process(options, how).wait();
}

TEST_CASE("bench_host lists its rows with their sizes") {
  const auto ran = bench_host({"--list"});
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Contains("small2      GPT of 29.4M, 2 ranks, float32, 29.4M parameters"));
  CHECK_THAT(ran.out, Contains("124.4M parameters, 1 x 1024 tokens"));
}

TEST_CASE("bench_host names the remedy before it measures anything") {
  const auto row = bench_host({"--only", "small,large"});
  CHECK(row.status == 1);
  CHECK_THAT(row.err, Contains("--only takes names of --list, but got \"large\""));
  const auto steps = bench_host({"--steps", "0"});
  CHECK(steps.status == 1);
  CHECK_THAT(steps.err, Contains("must be at least 1, but got 0 and 4"));
  const auto recorded = bench_host({"--record", "epyc2", "--steps", "4"});
  CHECK(recorded.status == 1);
  CHECK_THAT(recorded.err, Contains("--record requires at least 20 steps, but got 4"));
  CHECK_THAT(bench_host({"--record", "mine"}).err, Contains("machines.json") && Contains("mine"));
  const auto torch = bench_host({"--only", "small", "--torch", "/nowhere/python"});
  CHECK(torch.status == 1);
  CHECK_THAT(torch.err, Contains("--torch must name a python with torch 2.11.0"));
}

TEST_CASE("bench_host says how to get a build") {
  const Folder empty;
  How how;
  how.environment = {{"PERIGEE_BUILD", empty / ""}};
  const auto ran = bench_host({"--only", "small"}, how);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("is missing: build it (scripts/setup, scripts/build)"));
}

}  // namespace
