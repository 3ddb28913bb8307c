// scripts/gpu-check on the CPU: parts that run there, parts that need a GPU, stand-ins for commands
// that fail or do not end, and its archive.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct Check {
  Folder folder;
  Ran ran;
  nlohmann::json report;

  explicit Check(const std::vector<std::string>& options) {
    std::vector<std::string> command = {"python3", "scripts/gpu-check", "--device",
                                        "cpu",     "--output",          folder / "out"};
    command.insert(command.end(), options.begin(), options.end());
    How how;
    how.seconds = 240;
    ran = Process(command, how).wait();
    const auto text = read(folder / "out/gpu-check.json");
    if (!text.empty()) report = nlohmann::json::parse(text);
  }

  nlohmann::json part(const std::string& name) const {
    for (const auto& part : report.at("parts")) {
      if (part.at("name") == name) return part;
    }
    throw std::runtime_error("no part " + name);
  }
  std::string status(const std::string& name) const { return part(name).at("status"); }
};

TEST_CASE("parts of gpu-check run after one that fails and one that does not end") {
  const Folder marks;
  const auto left = marks / "left";
  // The stand-in ignores the signal to end, in a process group of its own.
  const auto endless = "setsid true; trap '' TERM INT; set -m; (trap '' TERM; echo \\$BASHPID > " +
                       left + "; while :; do sleep 600; done) & wait";
  const Check check({"--only", "", "--also", "fails", "30", "echo the disk is full; exit 3",
                     "--also", "endless", "2", "exec bash -c \"" + endless + "\"", "--also",
                     "works", "30", "echo done"});
  INFO(check.ran.out << check.ran.err);
  CHECK(check.ran.status == 1);
  CHECK(check.status("fails") == "failed");
  CHECK_THAT(check.part("fails").at("reason").get<std::string>(),
             Contains("ended with 3: the disk is full"));
  CHECK(check.status("endless") == "late");
  CHECK(check.part("endless").at("reason") == "ran past its 2 s");
  CHECK(check.status("works") == "passed");
  for (const auto& text : {check.ran.out, read(check.folder / "out/gpu-check.txt")}) {
    CHECK_THAT(text, Contains("endless  late"));
    CHECK_THAT(text, Contains("works    passed"));
  }
  CHECK_THAT(read(check.folder / "out/gpu-check.log"), Contains("the disk is full"));
  // Nothing that a part began outlives it: the process is gone, or nobody has asked how it ended.
  const auto state = read("/proc/" + std::to_string(std::stoi(read(left))) + "/stat");
  CHECK((state.empty() || state.find(") Z ") != std::string::npos));
}

TEST_CASE("no part of gpu-check begins after the time of the whole check") {
  const Check check({"--only", "", "--seconds", "0", "--also", "works", "30", "echo done"});
  CHECK(check.status("works") == "skipped");
  CHECK(check.part("works").at("reason") == "no time is left");
  CHECK(check.ran.status == 0);
}

TEST_CASE("on a machine without a GPU gpu-check trains, resumes and measures on the CPU") {
  const Check check({"--only",
                     "versions,ceilings,losses,memory,resume,gpt2,kernels,sanitizer,nccl,"
                     "tests-deterministic"});
  INFO(check.ran.out << check.ran.err << read(check.folder / "out/gpu-check.log"));
  REQUIRE(check.ran.status == 0);
  for (const char* name : {"versions", "ceilings", "losses", "memory", "resume", "gpt2"}) {
    INFO(name);
    CHECK(check.status(name) == "passed");
  }
  CHECK_THAT(check.part("versions").at("figures").at("LibTorch").get<std::string>(),
             Contains("2.11"));
  CHECK(check.part("ceilings").at("figures").at("bf16_product_per_s") > 1e6);
  CHECK(check.part("losses").at("figures").at("gpt float32, ranks 2") < 1e-3);
  CHECK(check.part("memory").at("figures").at("predicted / counted") == 1.0);
  CHECK(check.part("resume").at("figures").at("steps") == 6);
  CHECK(check.part("gpt2").at("figures").at("Perigee tokens a second") > 0);
  for (const std::string way : {"graphs", "activations", "kept"}) {
    CHECK(check.part("gpt2").at("figures").at("Perigee, " + way + ", tokens a second") > 0);
  }
  for (const char* name : {"kernels", "sanitizer", "nccl"}) {
    INFO(name);
    CHECK(check.status(name) == "skipped");
    CHECK(check.part(name).at("reason") == "needs a GPU");
  }
  CHECK(check.status("tests-deterministic") == "skipped");
}

TEST_CASE("the model of gpu-check fails where a GPU refuses to record its steps") {
  const Folder folder;
  const auto command = folder.write("build/perigee", R"(#!/bin/sh
[ "$1" = train ] || exit 0
if grep -q 'graphs = "true"' "$2"; then echo the graph is refused; exit 1; fi
run=${8#train.output=}
mkdir -p "$run"
for step in 1 2 3 4 5 6; do
  echo '{"step": 1, "loss": 2.0, "step_s": 0.1, "submit_s": [0.1]}'
done > "$run/metrics.jsonl"
echo '{"summary": {"peak_bytes": [1]}}' >> "$run/metrics.jsonl"
)");
  fs::permissions(command, fs::perms::owner_all);
  folder.write("torch/libtorch_cpu.so", "");
  folder.write("python/torch.py", "__version__ = \"\"\n");  // PyTorch is absent
  How how;
  how.environment = {{"PERIGEE_BUILD", folder / "build"}, {"PYTHONPATH", folder / "python"}};
  const auto ran = Process({"python3", "scripts/gpu-check", "--device", "cuda", "--only", "gpt2",
                            "--torch", folder / "torch", "--output", folder / "out"},
                           how)
                       .wait();
  INFO(ran.out << ran.err);
  CHECK(ran.status == 1);
  const auto report = nlohmann::json::parse(read(folder / "out/gpu-check.json"));
  const auto& part = report.at("parts").at(0);
  CHECK(part.at("reason") == "with graphs: perigee ended with 1: the graph is refused");
  CHECK(part.at("figures").at("Perigee, kept, ms a step") > 0);
}

TEST_CASE("an archive of gpu-check has a build's programs, and runs where it is unpacked") {
  const Folder folder;
  const auto build = folder / "build";
  fs::create_directories(build);
  const auto shell = [&](const std::string& line) {
    How how;
    how.environment = {{"PERIGEE_BUILD", build}};
    return Process({"/bin/bash", "-c", line}, how).wait();
  };
  const auto archive = folder / "check.tar.gz";
  const auto refused = shell("scripts/gpu-check --bundle " + archive);
  CHECK(refused.status == 1);
  CHECK_THAT(refused.err, Contains("/perigee is missing: build it first"));
  for (const char* name : {"perigee", "bench_ceilings", "tests_cuda", "tests_exec", "tests_parity",
                           "tests_train", "libperigee_core.so"}) {
    fs::copy("/bin/true", fs::path(build) / name);
  }
  const auto written = shell("scripts/gpu-check --bundle " + archive);
  INFO(written.err);
  REQUIRE(written.status == 0);
  CHECK(fs::file_size(archive) < 64 << 20);

  folder.write("torch/libtorch_cpu.so", "");
  const auto check = shell(
      "cd " + folder.path() + " && tar xf check.tar.gz && unset PERIGEE_BUILD && " +
      "perigee-gpu-check/scripts/gpu-check --torch torch --device cpu --only '' --also " +
      "build 9 'test -x perigee-gpu-check/build/tests_cuda && test -d perigee-gpu-check/tests'");
  INFO(check.out << check.err);
  CHECK(check.status == 0);
  CHECK_THAT(check.out, Contains("build  passed"));
}

TEST_CASE("gpu-check refuses a part that it does not have, and a tree without a build") {
  const Folder folder;
  const auto refusal = [&](const std::string& line) {
    How how;
    how.environment = {{"PERIGEE_BUILD", folder.path()}};
    const auto ran = Process({"/bin/bash", "-c", line}, how).wait();
    CHECK(ran.status == 1);
    CHECK(is_short(ran.err));
    return ran.err;
  };
  CHECK_THAT(refusal("scripts/gpu-check --only losses,speed"), Contains("but got \"speed\""));
  CHECK_THAT(refusal("scripts/gpu-check --only losses"), Contains("/perigee is missing: build it"));
}

}  // namespace
