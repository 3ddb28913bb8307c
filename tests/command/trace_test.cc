// train --trace, and how long a small job takes.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/command/support.h"

using namespace perigee::test;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Microseconds in which a rank reduced a bucket and computed its backward pass.
double overlap(const json& events, int rank) {
  double both = 0;
  for (const auto& a : events) {
    if (a["ph"] != "X" || a["pid"] != rank || a["tid"] == 0 || a["args"]["bytes"] <= 8) continue;
    const double begin = a["ts"], end = begin + a["dur"].get<double>();
    for (const auto& b : events) {
      if (b["ph"] != "X" || b["pid"] != rank || b["tid"] != 0) continue;
      if (b["args"]["phase"] != "backward") continue;
      const double first = b["ts"], last = first + b["dur"].get<double>();
      both += std::max(0.0, std::min(end, last) - std::max(begin, first));
    }
  }
  return both;
}

}  // namespace

TEST_CASE("a trace of training shows gradients that are reduced during the backward pass") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"gpt\"\nlayers = 3\nwidth = 128\nheads = 4\n"
                                "[data]\nsynthetic = true\nsequence = 128\n[batch]\nglobal = 8\n"
                                "[train]\nsteps = 3\nvalidate_every = 0\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const How how = {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
  const auto trace_with = [&](const std::string& communication) {
    const auto strategy =
        folder.write("s.lua", "return { { 'grad_comm', { " + communication + " } } }\n");
    const auto file = folder / "trace.json";
    fs::remove(file);
    const auto ran = run(
        "train " + job + " --overwrite --nproc 2 --strategy " + strategy + " --trace " + file, how);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return json::parse(read(file))["traceEvents"];
  };
  auto events = trace_with("bucket_mb = 0.06");
  // On a loaded machine, ranks can wait for each other all through a backward pass.
  for (int tries = 1; tries < 5 && (overlap(events, 0) == 0 || overlap(events, 1) == 0); ++tries) {
    events = trace_with("bucket_mb = 0.06");
  }
  std::set<int> ranks;
  std::set<std::string> streams;
  for (const auto& event : events) {
    ranks.insert(event["pid"].get<int>());
    if (event["name"] == "thread_name") streams.insert(event["args"]["name"].get<std::string>());
    if (event["ph"] == "X") CHECK(event["ts"] >= 0.0);
  }
  CHECK(ranks == std::set<int>{0, 1});
  CHECK(streams == std::set<std::string>{"compute", "data"});
  CHECK(overlap(events, 0) > 0);
  CHECK(overlap(events, 1) > 0);
  // What is reduced behind the backward pass does not run beside it.
  const auto afterwards = trace_with("bucket_mb = 0.06, overlap = false");
  CHECK(overlap(afterwards, 0) == 0);
  const auto one = trace_with("bucket_mb = 1000");
  CHECK(overlap(one, 0) == 0);
}

TEST_CASE("a trace that cannot be written ends the job with its name") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"mlp\"\ninputs = 4\noutputs = 2\nwidth = 8\n"
                                "[data]\nsynthetic = true\n[train]\nsteps = 2\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto ran = run("train " + job + " --trace " + folder / "none/trace.json",
                       {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}});
  CHECK(ran.status == 1);
  CHECK(is_short(ran.err.substr(ran.err.find("perigee: "))));
  CHECK_THAT(ran.err, Catch::Contains("none/trace.json"));
}

// The start counts: libraries, four processes, capture, plan, programs, checkpoint and end. The
// best of several, since other work on the machine is none of the command's.
TEST_CASE("six steps of a small GPT on four ranks take at most 2 s from start to exit") {
  const Folder folder;
  const auto job = folder.write(
      "job.toml", "[model]\nkind = \"gpt\"\nlayers = 4\nwidth = 48\nheads = 4\n[data]\ntext = [\"" +
                      fs::absolute("strategies/data/jargon.txt").string() +
                      "\"]\nsequence = 64\n[batch]\nglobal = 8\n[train]\nsteps = 6\noutput = \"" +
                      folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\nranks = 4\n");
  const How how = {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
  double best = 1e9;
  for (int tries = 0; tries < 10 && best > 2; ++tries) {
    const double begin = now();
    const auto ran = run("train " + job + " --overwrite", how);
    const double seconds = now() - begin;
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    best = std::min(best, seconds);
    WARN("run " << tries << ": " << seconds << " s");
  }
  CHECK(best <= 2);
}
