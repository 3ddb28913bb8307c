// Commands on files and names that need no model: schedule, solve, lua, check, new, doctor.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nlohmann::json;

namespace {

// Returns the one short error of a command that is refused.
std::string refusal(const std::string& arguments) {
  INFO(arguments);
  const auto ran = run(arguments);
  CHECK(ran.status == 2);
  CHECK(ran.out == "");
  CHECK(is_short(ran.err));
  return ran.err;
}

// Returns the folders in which the loader searches the libraries of an ELF file, by readelf's output:
// those of its RPATH and its RUNPATH, separated by colons.
std::vector<std::string> search_paths(const std::string& dynamic_section) {
  std::vector<std::string> paths;
  std::istringstream lines(dynamic_section);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("(RPATH)") == line.npos && line.find("(RUNPATH)") == line.npos) continue;
    const auto begin = line.find('[') + 1;
    paths.push_back(line.substr(begin, line.rfind(']') - begin));
  }
  return paths;
}

bool has_empty_element(const std::string& paths) {
  return (":" + paths + ":").find("::") != std::string::npos;
}

const std::string kProblems = "tests/solve/examples/";

}  // namespace

TEST_CASE("schedule prints a time line, or with --json nothing but JSON") {
  const auto ran = run("schedule 1f1b --stages 2 --microbatches 2 --json");
  CHECK(ran.status == 0);
  CHECK(ran.err == "");
  const auto parsed = json::parse(ran.out);
  CHECK(parsed["orders"] == json::parse(R"([["F0.0","F1.0","B0.0","B1.0"],
                                            ["F0.0","B0.0","F1.0","B1.0"]])"));
  CHECK(parsed["makespan"] == 9.0);
  CHECK(run("schedule 1f1b --stages 2 --microbatches 2").out.find("F0") != std::string::npos);
}

TEST_CASE("every option of schedule changes its result") {
  const auto schedule = [](const std::string& more) {
    return json::parse(run("schedule " + more + " --json").out);
  };
  CHECK(schedule("gpipe --stages 1 --microbatches 1 --forward 2 --backward 3 --wgrad "
                 "4")["makespan"] == 9.0);
  CHECK(schedule("gpipe --stages 2 --microbatches 1 --transfer 5")["makespan"] == 16.0);
  CHECK(schedule("interleaved --stages 2 --microbatches 4 --chunks 3")["chunks"] == 3);
  CHECK(schedule("1f1b --stages 2 --microbatches 4 --extra 1")["peak_in_flight"] ==
        json::parse("[3.0,2.0]"));
  CHECK(schedule("interleaved --stages 2 --microbatches 4 --group 4")["orders"][0][3] == "F3.0");
  CHECK(schedule("zb2p --stages 2 --microbatches 4 --memory-limit 2")["peak_in_flight"][0] <= 2.0);
}

TEST_CASE("libraries in the current folder are not loaded") {
  // The loader searches the current folder for an empty element of a RUNPATH; a library that it
  // finds there and cannot read ends the command.
  Folder folder;
  for (const auto* name : {"libfmt.so.9", "libspdlog.so.1.10", "libperigee_core.so"}) {
    folder.write(name, "not a library");
  }
  How how;
  how.folder = folder.path();
  const auto ran = run("schedule gpipe --stages 1 --microbatches 1 --json", how);
  CHECK(ran.err == "");
  CHECK(ran.status == 0);
  how.environment["LD_LIBRARY_PATH"] = ":";  // an empty element: the negative control
  CHECK_THAT(run("schedule gpipe --stages 1 --microbatches 1 --json", how).err,
             Contains("error while loading shared libraries"));
}

TEST_CASE("no ELF file of the build has an empty element in its RPATH or RUNPATH") {
  CHECK(search_paths(" 0x1d (RUNPATH)  Library runpath: [/a:$ORIGIN]\n 0x1 (NEEDED) [b]\n") ==
        std::vector<std::string>{"/a:$ORIGIN"});
  for (const auto* paths : {"", ":", "/a:", ":/a", "/a::/b"}) CHECK(has_empty_element(paths));
  for (const auto* paths : {"/a", "/a:/b"}) CHECK(!has_empty_element(paths));

  const char* build = std::getenv("PERIGEE_BUILD");
  const std::string folder = build ? build : "build";
  size_t files = 0, with_paths = 0;
  for (const auto& name : names_in(folder)) {
    if (name != "perigee" && !name.ends_with(".so")) continue;
    INFO(name);
    const auto ran = Process({"readelf", "--dynamic", "--wide", folder + "/" + name},
                             {.environment = {{"LC_ALL", "C"}}})
                         .wait();
    CHECK(ran.status == 0);
    ++files;
    for (const auto& paths : search_paths(ran.out)) {
      INFO(paths);
      CHECK(!has_empty_element(paths));
      ++with_paths;
    }
  }
  CHECK(files >= 6);  // the command, its libraries and plugins
  CHECK(with_paths >= 6);
}

TEST_CASE("unknown schedules are refused with the known ones") {
  CHECK_THAT(refusal("schedule 1f1c --stages 2 --microbatches 2"),
             Contains("did you mean \"1f1b\"?") && Contains("looped_bfs"));
  CHECK_THAT(refusal("schedule dualpipe_v --stages 4 --microbatches 1"), Contains("microbatches"));
  CHECK_THAT(refusal("schedule 1f1b --stages -1 --microbatches 2"), Contains("-1"));
  CHECK_THAT(refusal("schedule 1f1b --stages 2 --microbatches 2 --forward nan"), Contains("nan"));
  CHECK_THAT(refusal("schedule gpipe --stages 2 --microbatches 2 --extra 1"), Contains("extra"));
}

TEST_CASE("a solved problem exits 0, an infeasible one 3 with its result") {
  const auto solved = run("solve " + kProblems + "assign/02-memory.json --json");
  CHECK(solved.status == 0);
  CHECK(solved.err == "");
  CHECK(json::parse(solved.out)["status"] == "optimal");
  for (const std::string solver : {"auto", "labels", "ilp"}) {
    const auto ran = run("solve " + kProblems + "assign/02-memory.json --json --solver " + solver);
    INFO(solver << ran.err);
    CHECK(json::parse(ran.out)["time"] == 201.0);
  }
  const auto none = run("solve " + kProblems + "assign/11-too-little-memory.json --json");
  CHECK(none.status == 3);
  CHECK(json::parse(none.out)["status"] == "infeasible");
  CHECK_THAT(std::string(json::parse(none.out)["reason"]), Contains("memory_limit 49"));
  const auto text = run("solve " + kProblems + "stages/01-one-host.json --time-limit 10");
  CHECK(text.status == 0);
  CHECK_THAT(text.out, StartsWith("optimal"));
}

TEST_CASE("wrong problem files are refused") {
  Folder folder;
  CHECK_THAT(refusal("solve /no/such.json"),
             Contains("/no/such.json") && Contains("there is none"));
  CHECK_THAT(refusal("solve " + folder.path()), Contains(folder.path()));
  CHECK_THAT(refusal("solve " + folder.write("a.json", "{ \"format\": ")), Contains("a.json"));
  CHECK_THAT(refusal("solve " + folder.write("b.json", "")), Contains("b.json"));
  CHECK_THAT(refusal("solve " + folder.write("c.json", R"({"format":"perigee.problem/1",
             "kind":"asign","ops":[]})")),
             Contains("\"assign\""));
  CHECK_THAT(refusal("solve " + kProblems + "assign/01-chain.json --solver cplex"),
             Contains("auto, labels or ilp, but got \"cplex\""));
  CHECK_THAT(refusal("solve " + kProblems + "assign/01-chain.json --time-limit -1"),
             Contains("-1"));
}

TEST_CASE("a Lua file's result is printed as JSON, its own output goes to the log") {
  Folder folder;
  const auto file = folder.write("a.lua", "print('hello') return { 1, 'two', { x = true } }");
  const auto ran = run("lua --json " + file);
  CHECK(ran.status == 0);
  CHECK(ran.out == "[1,\"two\",{\"x\":true}]\n");
  CHECK_THAT(ran.err, Contains("hello"));
  CHECK(json::parse(run("lua " + file).out) == json::parse(ran.out));
  const auto loop = folder.write("b.lua", "for i = 1, 1e5 do end return { 1 }");
  CHECK(run("lua --json --script-seconds inf " + loop).out == "[1]\n");
}

TEST_CASE("a Lua error exits 2 at the script's line") {
  Folder folder;
  const auto error = [&](const std::string& text, const std::string& options = "") {
    return refusal("lua " + folder.write("s.lua", text) + " " + options);
  };
  CHECK_THAT(error("\nlocal x = nosuch"), Contains("s.lua:2:") && Contains("nosuch"));
  CHECK_THAT(error("x = 1"), Contains("s.lua:1:"));
  CHECK_THAT(error("return {"), Contains("s.lua:1:"));
  CHECK_THAT(error("return print"), Contains("function"));
  CHECK_THAT(error("local t = {} t.t = t return t"), Contains("contains itself"));
  CHECK_THAT(error("\n\nwhile true do end", "--script-seconds 0.2"),
             Contains("s.lua:3:") && Contains("0.2 s"));
  CHECK_THAT(error("local t = {} for i = 1, 1e9 do t[i] = i end", "--script-megabytes 16"),
             Contains("16 MB"));
  CHECK_THAT(error("error({ code = 1 })"), Contains("s.lua"));
  CHECK_THAT(error("local m = require 'perigee.methods'\nm.parallel_mod {}"),
             Contains("s.lua:2:") && Contains("parallel_mode"));
  CHECK_THAT(refusal("lua /no/such.lua"), Contains("/no/such.lua"));
  CHECK_THAT(refusal("lua " + folder.path()), Contains(folder.path()));
  CHECK_THAT(refusal("lua"), Contains("FILE"));
}

TEST_CASE("a stack trace is shown only with -v") {
  Folder folder;
  const auto file = folder.write("s.lua", "local function f() error('no') end\nf()\nreturn 1");
  CHECK_THAT(run("lua " + file).err, !Contains("traceback"));
  CHECK_THAT(run("-v lua " + file).err, Contains("traceback"));
}

TEST_CASE("the repository has the API's editor types and reference") {
  CHECK(run("lua --types").out == read("runtime/perigee.d.lua"));
  CHECK(run("lua --reference").out == read("runtime/lua.md"));
}

TEST_CASE("check names the methods of a strategy, and its mistakes") {
  const auto ran = run("check strategies/data_parallel/ddp.lua");
  CHECK(ran.status == 0);
  CHECK(ran.out ==
        "strategies/data_parallel/ddp.lua: no mistakes found\nparallel_mode\ngrad_comm\n");
  CHECK(run("check runtime/new/strategy.lua").status == 0);
  Folder folder;
  const auto error = [&](const std::string& text) {
    return refusal("check " + folder.write("s.lua", text));
  };
  CHECK_THAT(error("return { 'parallel_mod' }"), Contains("did you mean \"parallel_mode\"?"));
  CHECK_THAT(error("return { { 'grad_comm', { buckt_mb = 1 } } }"),
             Contains("did you mean \"bucket_mb\"?"));
  CHECK_THAT(error("return { { 'grad_comm', { bucket_mb = '1' } } }"), Contains("number"));
  CHECK_THAT(error("return 7"), Contains("s.lua") && Contains("number"));
  CHECK_THAT(error(""), Contains("nothing"));
  CHECK_THAT(error("while true do end"), Contains("5 s"));
  CHECK_THAT(refusal("check /no/such.lua"), Contains("/no/such.lua"));
  CHECK_THAT(refusal("check strategies/data_parallel/ddp.lua /no/such.toml"),
             Contains("/no/such.toml"));
  CHECK_THAT(refusal("check " + folder.write("job.toml", "[model]\nkind = \"gpt\"\n")),
             Contains("takes a strategy script, but ") && Contains(" is a job: perigee plan "));
  CHECK_THAT(run("check " + folder.write("f.lua", "return function(job, graph) return {} end")).out,
             Contains("give a job"));
}

TEST_CASE("new makes a folder that the other commands accept, and never overwrites") {
  Folder folder;
  const auto made = folder / "sub/mine";
  const auto ran = run("new " + made);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Contains("perigee train " + made + "/job.toml"));
  for (const auto* name : {"job.toml", "strategy.lua", "model.cc"}) {
    CHECK(read(made + "/" + name) == read(std::string("runtime/new/") + name));
  }
  CHECK(read(made + "/text.txt") == read("strategies/data/novels.txt"));
  CHECK(read(made + "/tokenizer.model") == read("strategies/data/novels.model"));
  CHECK(run("check " + made + "/strategy.lua").status == 0);
  CHECK_THAT(refusal("new " + made), Contains("exists and is not empty"));
  CHECK_THAT(refusal("new " + folder.write("file", "text")), Contains("file"));
  const auto nowhere = run("new /proc/mine");
  CHECK(nowhere.status == 1);
  CHECK_THAT(nowhere.err, Contains("/proc/mine"));
}

TEST_CASE("new prints a command that a shell reads as typed") {
  Folder folder;
  const auto made = folder / "my 'own' model";
  const auto out = run({"new", made}, {}).out;
  const std::string start = "Start with: ";
  REQUIRE_THAT(out, Contains(start));
  auto command = out.substr(out.find(start) + start.size());
  const auto train = command.find(" train ");
  REQUIRE(train != std::string::npos);
  command.replace(train, 7, " graph ");  // reads the job as train does
  const auto shown = Process({"/bin/bash", "-c", command}, {.folder = folder.path()}).wait();
  INFO(command << shown.err);
  CHECK(shown.status == 0);
}

TEST_CASE("CMake finds Perigee from the project that new writes") {
  Folder folder;
  REQUIRE(run({"new", folder / "my model"}, {}).status == 0);
  // The command is not on the PATH, and no prefix is given.
  const auto ran = Process({"/bin/sh", "-c", "exec cmake -S 'my model' -B made 2>&1"},
                           {.folder = folder.path()})
                       .wait();
  INFO(ran.out);
  CHECK(ran.status == 0);
  const auto build = std::filesystem::path(command_path()).parent_path().string();
  CHECK_THAT(read(folder / "made/CMakeCache.txt"), Contains("Perigee_DIR:PATH=" + build + "\n"));
}

TEST_CASE("new copies a PyTorch model with its export") {
  Folder folder;
  const auto made = folder / "mine";
  const auto ran = run("new --from pytorch " + made);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Contains("python3 " + made + "/model.py"));
  CHECK(read(made + "/model.py") == read("runtime/new_pytorch/model.py"));
  CHECK(read(made + "/job.toml") == read("runtime/new_pytorch/job.toml"));
  CHECK(read(made + "/export.py") == read("runtime/export.py"));
  CHECK(read(made + "/strategy.lua") == read("runtime/new/strategy.lua"));
  CHECK_THAT(refusal("new --from java " + folder.path() + "/other"), Contains("--from"));
}

TEST_CASE("doctor prints the version, the machine and the shipped files") {
  const auto ran = run("doctor");
  CHECK_THAT(ran.out, Contains("perigee") && Contains("Linux") && Contains("cores") &&
                          Contains("strategies") && !Contains("missing: reinstall"));
  if (ran.status != 0) return;  // built without LibTorch
  CHECK_THAT(ran.out, Contains("LibTorch    2.11.0") && Contains("threads: ready") &&
                          Contains("\nranks       1 with 1 thread by default (--nproc, ") &&
                          Contains("\nproducts    float32 by ") &&
                          Contains("shared memory: ready") && Contains("gloo: ready") &&
                          Contains("nccl: ") && Contains("perigee_cuda: ") &&
                          Contains("\nGPUs        "));
}

TEST_CASE("doctor names the limit that leaves ranks without shared memory") {
  if (run("doctor").status != 0) return;  // built without LibTorch
  How how;
  how.file_bytes = 64 << 20;
  const auto ran = run("doctor", how);
  CHECK(ran.status == 0);
  const auto begin = ran.out.find("shared memory: does not work: ");
  REQUIRE(begin != std::string::npos);
  CHECK_THAT(ran.out.substr(begin, ran.out.find('\n', begin) - begin),
             Contains("(ulimit -f)") && Contains("; ranks of this host use gloo"));
}

TEST_CASE("jobs that cannot be read are refused before anything is loaded") {
  Folder folder;
  for (const std::string command : {"train", "plan", "graph", "evaluate", "sample"}) {
    CHECK_THAT(refusal(command + " /no/such.toml"), Contains("/no/such.toml"));
    CHECK_THAT(refusal(command + " " + folder.path()), Contains(folder.path()));
    CHECK_THAT(refusal(command + " " + folder.write("bad.toml", "[model\n")),
               Contains("bad.toml:1"));
    CHECK_THAT(
        refusal(command + " " + folder.write("typo.toml", "[model]\nkind = \"gpt\"\nlayer = 2\n")),
        Contains("typo.toml:3") && Contains("layers"));
  }
  CHECK_THAT(refusal("train strategies/data_parallel/ddp.lua"), Contains("must name its job"));
  CHECK_THAT(refusal("train strategies/gpt.toml --strategy dpp"), Contains("\"ddp\""));
  CHECK_THAT(refusal("train strategies/gpt.toml --strategy /no/such.lua"),
             Contains("/no/such.lua"));
  CHECK_THAT(refusal("train strategies/gpt.toml --plan /no/such.json"), Contains("/no/such.json"));
  CHECK_THAT(refusal("train strategies/gpt.toml --set model.layer=2"), Contains("\"layers\""));
  CHECK_THAT(refusal("train strategies/gpt.toml --set model.layers=two"), Contains("two"));
  CHECK_THAT(refusal("train strategies/gpt.toml --set model.layers"), Contains("model.layers"));
  CHECK_THAT(refusal("train strategies/gpt.toml --resume --overwrite"), Contains("--overwrite"));
}
