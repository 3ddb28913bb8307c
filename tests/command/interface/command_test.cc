// Properties of all commands: help, names, wrong arguments, the destination of results.
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/command/planning/planned_job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

const std::vector<std::string> kCommands = {"train", "evaluate", "sample", "export",   "plan",
                                            "graph", "check",    "mesh",   "schedule", "lua",
                                            "solve", "new",      "doctor"};

// Checks that the command is refused with status 2 and only this text.
void refused(std::string_view arguments, const std::string& error) {
  INFO(arguments);
  const auto ran = run(arguments);
  CHECK(ran.status == 2);
  CHECK(ran.out == "");
  CHECK(ran.err == "perigee: " + error + "\n");
}

}  // namespace

TEST_CASE("the version is one line on standard output") {
  const auto ran = run("--version");
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Catch::Matchers::Matches("perigee [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  CHECK(ran.err == "");
}

TEST_CASE("every command has help, and the command lists them all") {
  const auto all = run("--help");
  CHECK(all.status == 0);
  for (const auto& command : kCommands) {
    INFO(command);
    CHECK_THAT(all.out, Contains("\n  " + command + " "));
    const auto ran = run(command + " --help");
    CHECK(ran.status == 0);
    CHECK_THAT(ran.out, Contains("Usage: perigee " + command) &&
                            Contains("Examples:\n  perigee " + command));
    CHECK(ran.err == "");
  }
}

TEST_CASE("a missing or unknown command is an error that names the nearest") {
  refused("", "[command] a command is needed, but there is none; see perigee --help");
  refused("-v", "[command] a command is needed, but there is none; see perigee --help");
  refused("mehs tensor=2",
          "[command] a command is needed, but \"mehs\" is none, did you mean \"mesh\"?; see "
          "perigee --help");
  refused("tarin --nproc 2",
          "[command] a command is needed, but \"tarin\" is none, did you mean \"train\"?; see "
          "perigee --help");
  refused("zzzzzzzz",
          "[command] a command is needed, but \"zzzzzzzz\" is none; see perigee --help");
}

TEST_CASE("an unknown option at any position names the nearest") {
  refused("--verison",
          "[command] there is no option --verison, did you mean \"--version\"?; see perigee "
          "--help");
  refused("mesh tensor=2 --jsno",
          "[command] there is no option --jsno, did you mean \"--json\"?; see perigee mesh --help");
  refused(
      "train --stratgey ddp job.toml",
      "[command] there is no option --stratgey, did you mean \"--strategy\"?; see perigee train "
      "--help");
  refused("mesh --verbos tensor=2",
          "[command] there is no option --verbos, did you mean \"--verbose\"?; see perigee mesh "
          "--help");
}

TEST_CASE("missing, surplus and repeated arguments are refused by name") {
  refused("mesh", "[command] AXES must be given, but is not; see perigee mesh --help");
  refused("train", "[command] JOB must be given, but is not; see perigee train --help");
  refused("export", "[command] CHECKPOINT must be given, but is not; see perigee export --help");
  refused("export runs/gpt",
          "[command] exactly one of the options -o,--output,--hf,--adapter must be given; see "
          "perigee export "
          "--help");
  refused("new", "[command] DIR must be given, but is not; see perigee new --help");
  refused("schedule 1f1b --stages 2",
          "[command] --microbatches must be given, but is not; see perigee schedule --help");
  refused("mesh tensor=2 data=2",
          "[command] one argument too many: \"data=2\"; see perigee mesh --help");
  refused("mesh tensor=2 -o",
          "[command] --output needs a value, but got none; see perigee mesh "
          "--help");
  refused("mesh tensor=2 -o a -o b",
          "[command] --output may be given once, but is given 2 times; see perigee mesh --help");
}

TEST_CASE("a value of the wrong type is refused with the value") {
  refused("schedule 1f1b --stages two --microbatches 2",
          "[command] --stages takes a number in range, but got \"two\"; see perigee schedule "
          "--help");
  refused("schedule 1f1b --stages 99999999999 --microbatches 2",
          "[command] --stages takes a number in range, but got \"99999999999\"; see perigee "
          "schedule --help");
  refused("train job.toml --nproc 1.5",
          "[command] --nproc must be from 1 to 1048576, but got 1.5; see perigee train --help");
  refused("train job.toml --nproc 99999999999999999999",
          "[command] --nproc must be from 1 to 1048576, but got 99999999999999999999; see perigee "
          "train --help");
  refused("train job.toml --nodes 9999999",
          "[command] --nodes takes N or MIN:MAX with 1 <= MIN <= MAX <= 1048576, but got "
          "\"9999999\"");
  refused("train job.toml --max-restarts -1",
          "[command] --max-restarts must be at least 0, but got -1; see perigee train --help");
  refused("sample job.toml --top-p 1.5",
          "[command] --top-p must be from 0 to 1, but got 1.5; see perigee sample --help");
  refused(
      "evaluate job.toml --cluster 8xh100",
      "[command] --cluster is for planning (perigee plan, perigee simulate), but this runs here");
  for (const std::string seed : {"-1", "99999999999999999999", "0x10"}) {
    refused("sample job.toml --seed " + seed,
            "[command] --seed takes a number in range, but got \"" + seed +
                "\"; see perigee sample --help");
  }
  refused("export runs/gpt --hf tuned --shard-size 99999999999999999999",
          "[command] --shard-size takes a number in range, but got \"99999999999999999999\"; see "
          "perigee export --help");
  const auto ran = run("train job.toml --nproc 0");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("--nproc") && Contains("0"));
}

TEST_CASE("a repeatable option takes one text each time, as it is typed") {
  const auto last = run("mesh data=2,tensor=2 --json --group data,tensor");
  const auto first = run("mesh --group data,tensor data=2,tensor=2 --json");
  CHECK(first.err == "");
  CHECK(first.out == last.out);
  CHECK_THAT(run("mesh data=2 --group [data]").err, Contains("but got \"[data]\""));
}

TEST_CASE("a number may begin with zeros") {
  const auto ran = run("schedule gpipe --stages 010 --microbatches 2 --json");
  CHECK(ran.err == "");
  CHECK(ran.out == run("schedule gpipe --stages 10 --microbatches 2 --json").out);
  CHECK_THAT(run("watch --port 0100000").err, Contains("--port must be from 0 to 65535"));
}

TEST_CASE("a text that ends the output is not empty") {
  const auto ran = run({"sample", "job.toml", "--stop", ""});
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("--stop: the text is empty; see perigee sample --help"));
}

TEST_CASE("an empty name of a strategy, a plan or a cluster is an error") {
  for (const std::string option : {"--strategy", "--plan", "--cluster"}) {
    const auto ran = run({"plan", "job.toml", option, ""});
    CHECK(ran.status == 2);
    CHECK_THAT(ran.err, Contains(option + ": must be a name, but it is empty"));
  }
}

TEST_CASE("two plans for one simulation exclude each other") {
  refused("simulate a.json --plan b.json",
          "[command] a.json is the plan that is simulated, but --plan names b.json: leave one of "
          "them out");
}

TEST_CASE("files of options that cannot be written are refused before a job is read") {
  for (const auto* arguments : {"plan job.toml -o ", "plan job.toml --report ",
                                "simulate job.toml --trace ", "train job.toml --trace "}) {
    const auto ran = run(arguments + std::string("/no/such/file"));
    CHECK(ran.status == 1);
    CHECK(ran.err ==
          "perigee: [file] /no/such/file must be written, but: No such file or directory\n");
  }
}

TEST_CASE("the complete result goes to the file of -o and nowhere else") {
  Folder folder;
  const auto file = folder / "mesh.json";
  const auto ran = run("mesh tensor=2 --json -o " + file);
  CHECK(ran.status == 0);
  CHECK(ran.out == "");
  CHECK(read(file) == run("mesh tensor=2 --json").out);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a link that -o names stays a link") {
  Folder folder;
  const auto file = folder.write("target", "old");
  std::filesystem::create_symlink("target", folder / "link");
  CHECK(run("mesh tensor=2 -o " + (folder / "link")).status == 0);
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(read(file) == run("mesh tensor=2").out);
}

TEST_CASE("the target of a link planted in place of a temporary file of -o stays as it is") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto target = folder.write("target", "kept");
  for (const auto& command : {std::string("mesh tensor=2"), "plan " + job + " --nproc 2"}) {
    INFO(command);
    const auto file = folder / "result", partial = file + ".partial";
    std::filesystem::remove(file);
    std::filesystem::create_symlink(target, partial);
    const auto ran = run(command + " -o " + file, own_cache(folder));
    INFO(ran.err);
    CHECK(ran.status == 0);
    CHECK(read(target) == "kept");
    CHECK(read(file).size() > 10);
    CHECK(!std::filesystem::is_symlink(file));
    CHECK(!std::filesystem::exists(std::filesystem::symlink_status(partial)));
  }
}

TEST_CASE("a result that cannot be written is an error and keeps the old file") {
  Folder folder;
  const auto missing = run("mesh tensor=2 -o " + (folder / "no/such/file"));
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, Contains("no/such/file must be written, but: No such file or directory"));
  const auto directory = run("mesh tensor=2 -o " + folder.path());
  CHECK(directory.status == 1);
  CHECK_THAT(directory.err, Contains(folder.path() + " must be written, but: Is a directory"));
  CHECK(!std::filesystem::exists(folder.path() + ".partial"));
  std::filesystem::create_symlink("/dev/full", folder / "full");
  const auto full = run("mesh tensor=2 -o " + (folder / "full"));
  CHECK(full.status == 1);
  CHECK_THAT(full.err, Contains("full must be written, but: No space left on device"));
  CHECK(std::filesystem::is_character_file("/dev/full"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a standard output that cannot be written is an error") {
  for (const auto* arguments :
       {"mesh tensor=2", "mesh tensor=2 --json", "doctor", "--version", "--help", "mesh --help"}) {
    INFO(arguments);
    const auto full = run(arguments, {.output = "/dev/full"});
    CHECK(full.status == 1);
    CHECK_THAT(full.err, Contains("standard output"));
    const auto closed = run(arguments, {.closed_output = true});
    CHECK(closed.status == 1);
    CHECK_THAT(closed.err, Contains("standard output"));
  }
}

TEST_CASE("commands that need no tensors do not load LibTorch") {
  Folder folder;
  const auto script = folder.write("s.lua", "return { 1 }");
  for (const auto& arguments : std::vector<std::string>{
           "--version", "--help", "mesh tensor=2", "schedule 1f1b --stages 2 --microbatches 2",
           "lua " + script, "solve tests/solve/examples/assign/01-chain.json",
           "check strategies/data_parallel/ddp.lua"}) {
    INFO(arguments);
    const auto ran = run(arguments, {.environment = {{"LD_DEBUG", "files"}}});
    CHECK(ran.status == 0);
    CHECK_THAT(ran.err, Contains("libperigee_core"));  // the loader printed its libraries
    for (const auto* library : {"torch", "libc10", "cuda", "libCbc", "sqlite"}) {
      CHECK_THAT(ran.err, !Contains(library));
    }
  }
}
