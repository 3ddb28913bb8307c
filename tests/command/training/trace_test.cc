// train --trace, and the time of a small job.
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/command/support.h"

using namespace perigee::test;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Microseconds in which a rank communicated with that op ("": any, of more than one number) and
// computed that pass ("": either); `others`: of another microbatch; `computed`: only by that op.
double overlap(const json& events, int rank, const std::string& op = "",
               const std::string& phase = "backward", bool others = false,
               const std::string& computed = "") {
  double both = 0;
  for (const auto& a : events) {
    if (a["ph"] != "X" || a["pid"] != rank || a["tid"] == 0) continue;
    if (op.empty() ? a["args"]["bytes"] <= 8 : a["name"] != op) continue;
    const double begin = a["ts"], end = begin + a["dur"].get<double>();
    for (const auto& b : events) {
      if (b["ph"] != "X" || b["pid"] != rank || b["tid"] != 0) continue;
      if (!phase.empty() && b["args"]["phase"] != phase) continue;
      if (!computed.empty() && b["name"] != computed) continue;
      if (others && a["args"]["microbatch"] == b["args"]["microbatch"]) continue;
      const double first = b["ts"], last = first + b["dur"].get<double>();
      both += std::max(0.0, std::min(end, last) - std::max(begin, first));
    }
  }
  return both;
}

// The busy seconds of all processors.
double busy() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft = 0,
         stolen = 0;
  stat >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft >> stolen;
  return (user + nice + system + interrupts + soft + stolen) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The processor seconds of ended children and their descendants.
double used() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The events of a job's training on two ranks.
// Over shared memory, ranks that have no core to spare carry collectives out between ops: Gloo has
// threads of its own.
json traced(const Folder& folder, const std::string& job, const std::string& strategy) {
  const auto file = folder / "trace.json";
  fs::remove(file);
  const auto ran = run("train " + job +
                           " --overwrite --nproc 2 --set cluster.communicator=gloo --strategy " +
                           strategy + " --trace " + file,
                       {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return json::parse(read(file))["traceEvents"];
}

}  // namespace

TEST_CASE("a trace of training shows gradients reduced during the backward pass") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"gpt\"\nlayers = 3\nwidth = 128\nheads = 4\n"
                                "[data]\nsynthetic = true\nsequence = 128\n[batch]\nglobal = 8\n"
                                "[train]\nsteps = 3\nvalidate_every = 0\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto trace_with = [&](const std::string& communication) {
    const auto strategy = folder.write("s.lua",
                                       "return { { 'grad_comm', { " + communication + " } } }\n");
    return traced(folder, job, strategy);
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
  // A reduction after the backward pass does not overlap with it.
  const auto afterwards = trace_with("bucket_mb = 0.06, overlap = false");
  CHECK(overlap(afterwards, 0) == 0);
  const auto one = trace_with("bucket_mb = 1000");
  CHECK(overlap(one, 0) == 0);
}

TEST_CASE("a trace shows gathered units and stages' messages while ranks compute") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"gpt\"\nlayers = 4\nwidth = 96\nheads = 4\n"
                                "[data]\nsynthetic = true\nsequence = 64\n[batch]\nglobal = 16\n"
                                "[train]\nsteps = 3\nvalidate_every = 0\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto overlap_with = [&](const std::string& methods, const std::string& op) {
    const auto strategy = folder.write("s.lua", "return { " + methods + " }\n");
    const auto events = traced(folder, job, strategy);
    return std::max(overlap(events, 0, op, ""), overlap(events, 1, op, ""));
  };
  const std::string stages =
      "{ 'parallel_mode', { { 'pipe', 2 }, { 'data', 1 } } }, { 'pipeline_parallel' }, "
      "{ 'gradient_accumulation', { microbatches = 8 } }";
  struct Case {
    std::string op, with, without;
  };
  for (const auto& [op, with, without] : std::vector<Case>{
           {"comm::all_gather", "{ 'fsdp', { match = 'blocks.*' } }",
            "{ 'fsdp', { match = 'blocks.*', forward_prefetch = false, backward_prefetch = 'none' "
            "} }"},
           {"comm::receive", stages + ", { 'overlap', { receives = true } }", stages}}) {
    INFO(op);
    double both = 0;
    // On a loaded machine, ranks can wait for each other all the time.
    for (int tries = 0; tries < 5 && both == 0; ++tries) both = overlap_with(with, op);
    CHECK(both > 0);
    CHECK(overlap_with(without, op) == 0);
  }
}

// The gradients of queries, keys and values, or of gate and up, with respect to their input.
TEST_CASE("a trace shows a slice of a product reduced while the next one is computed") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"llama\"\nlayers = 3\nwidth = 128\nheads = 4\n"
                                "[data]\nsynthetic = true\nsequence = 32\n[batch]\nglobal = 4\n"
                                "[train]\nsteps = 3\nvalidate_every = 0\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto beside_with = [&](const std::string& more) {
    const auto strategy = folder.write(
        "s.lua",
        "return { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 1 } } }, { 'tensor_parallel' }" +
            more + " }\n");
    const auto events = traced(folder, job, strategy);
    double most = 0;
    for (const int rank : {0, 1}) {
      most = std::max(
          most, overlap(events, rank, "comm::all_reduce", "backward", false, "perigee::addmm_"));
    }
    return most;
  };
  double both = 0;
  // On a loaded machine, ranks can wait for each other all the time.
  for (int tries = 0; tries < 5 && both == 0; ++tries) {
    both = beside_with(", { 'overlap', { slices = 2 } }");
  }
  CHECK(both > 0);
  CHECK(beside_with("") == 0);
}

TEST_CASE("a trace shows rows sent to experts while another microbatch computes") {
  const Folder folder;
  const auto job = folder.write("job.toml",
                                "[model]\nkind = \"moe\"\nlayers = 2\nwidth = 96\nheads = 4\n"
                                "experts = 4\ncapacity_per = \"sample\"\n"
                                "[data]\nsynthetic = true\nsequence = 64\n[batch]\nglobal = 8\n"
                                "[train]\nsteps = 3\nvalidate_every = 0\noutput = \"" +
                                    folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto hidden_with = [&](const std::string& more) {
    const auto strategy = folder.write(
        "s.lua",
        "return { { 'parallel_mode', { { 'expert', 2 }, { 'data', 1 } } }, { 'expert_parallel' }, "
        "{ 'gradient_accumulation', { microbatches = 4 } }" +
            more + " }\n");
    const auto events = traced(folder, job, strategy);
    return std::max(overlap(events, 0, "comm::exchange", "", true),
                    overlap(events, 1, "comm::exchange", "", true));
  };
  double both = 0;
  // On a loaded machine, ranks can wait for each other all the time.
  for (int tries = 0; tries < 5 && both == 0; ++tries) {
    both = hidden_with(", { 'overlap', { experts = true } }");
  }
  CHECK(both > 0);
  CHECK(hidden_with("") == 0);
}

TEST_CASE("a trace that cannot be written ends the job with the file's name") {
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
  CHECK_FALSE(std::filesystem::exists(folder / "run"));  // before the first step
}

// The time includes the start: libraries, four processes, capture, plan, programs, checkpoint and
// end. Where other work uses the processors, wall time is meaningless: half of the processor time
// of all ranks is compared with the limit instead (on shared processors the same work takes about
// twice as long).
TEST_CASE("six steps of a small GPT on four ranks take at most 2 s from start to exit") {
  const Folder folder;
  const auto job = folder.write(
      "job.toml", "[model]\nkind = \"gpt\"\nlayers = 4\nwidth = 48\nheads = 4\n[data]\ntext = [\"" +
                      fs::absolute("strategies/data/novels.txt").string() +
                      "\"]\nsequence = 64\n[batch]\nglobal = 8\n[train]\nsteps = 6\noutput = \"" +
                      folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\nranks = 4\n");
  const How how = {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
  double best = 1e9;
  for (int tries = 0; tries < 4 && best > 2; ++tries) {
    const double begin = now(), busy_before = busy(), used_before = used();
    const auto ran = run("train " + job + " --overwrite", how);
    const double passed = now() - begin, own = used() - used_before;
    const double others = busy() - busy_before - own;
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    best = std::min(best, others > 0.2 * passed ? own / 2 : passed);
    WARN("run " << tries << ": " << passed << " s passed, " << own << " s used, " << others
                << " s by other work");
  }
  CHECK(best <= 2);
}
