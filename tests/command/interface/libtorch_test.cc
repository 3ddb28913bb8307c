// The LibTorch that the command loads: PERIGEE_TORCH, versions, and scripts/libtorch, which provides it.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::string error_of_graph(const std::string& variable, const std::string& value, int status) {
  How how;
  how.environment = {{variable, value}};
  const auto ran = run("graph strategies/gpt.toml", how);
  CHECK(ran.status == status);
  CHECK(is_short(ran.err));
  return ran.err;
}

// Runs scripts/libtorch in an empty folder; no Python of the machine is found.
Ran provide(const Folder& folder, const std::string& arguments, const std::string& torch = "",
            const std::string& version = "") {
  How how;
  how.environment = {
      {"PERIGEE_TORCH", torch}, {"PERIGEE_LIBTORCH", version}, {"HOME", folder.path()}};
  return Process({"/bin/bash", "-c",
                  "bin=" + folder.path() +
                      "/bin; mkdir -p $bin; for tool in python3 python; do "
                      "printf '#!/bin/sh\\nexit 1\\n' > $bin/$tool; chmod +x $bin/$tool; done; "
                      "PATH=$bin:$PATH exec scripts/libtorch " +
                      arguments},
                 how)
      .wait();
}

void write_torch(const Folder& folder, const std::string& name, int minor) {
  fs::create_directories(folder / (name + "/lib"));
  fs::create_directories(folder / (name + "/include/torch/headeronly"));
  folder.write(name + "/lib/libtorch_cpu.so", "");
  folder.write(name + "/include/torch/headeronly/version.h",
               "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR " +
                   std::to_string(minor) + "\n#define TORCH_VERSION_PATCH 0\n");
}

}  // namespace

TEST_CASE("PERIGEE_TORCH names the LibTorch that the command loads") {
  How how;
  how.environment = {{"PERIGEE_TORCH", fs::canonical(".deps/torch").string()}};
  CHECK(run("doctor", how).status == 0);
  CHECK_THAT(error_of_graph("PERIGEE_TORCH", "/no/such", 2),
             Contains("lib/libtorch_cpu.so") && Contains("/no/such"));
  const Folder folder;
  write_torch(folder, "torch", 11);  // not a library
  for (const auto& name : {folder.path(), folder / "torch"}) {
    CHECK_THAT(error_of_graph("PERIGEE_TORCH", name, 1),
               Contains("PERIGEE_TORCH must be loaded") && Contains(folder / "torch/lib"));
  }
}

TEST_CASE("the command refuses a libperigee_torch of another version") {
  const Folder folder;
  const auto build = fs::path(command_path()).parent_path();
  fs::copy_file(build / "libplugin_disk.so", folder / "libperigee_torch.so");
  CHECK_THAT(error_of_graph("LD_LIBRARY_PATH", folder.path(), 1),
             Contains("must be of version") && Contains("an earlier one"));
}

TEST_CASE("the command refuses a LibTorch of another minor version, with its package's remedy") {
  const Folder folder;
  const auto build = fs::path(command_path()).parent_path();
  fs::create_directories(folder / "lib");
  fs::copy_file(build / "libplugin_torch.so", folder / "lib/libperigee_torch.so");
  // The command in a package, beside the file that tells which one it is.
  const auto error_in = [&](const std::string& package, const std::string& file) {
    fs::create_directories(folder / (package + "/bin"));
    fs::copy_file(command_path(), folder / (package + "/bin/perigee"));
    if (!file.empty()) folder.write(package + "/" + file, "");
    How how;
    how.environment = {{"LD_LIBRARY_PATH", folder / "lib:" + build.string()}};
    const auto ran = Process({folder / (package + "/bin/perigee"), "export", "run", "-o",
                              "w.safetensors"},
                             how)
                         .wait();
    CHECK(ran.status == 1);
    CHECK(is_short(ran.err));
    CHECK_THAT(ran.err, Contains("LibTorch must be 2.") && Contains("but is 2.5; ") &&
                            Contains("set PERIGEE_TORCH to its folder"));
    return ran.err;
  };
  CHECK_THAT(error_in("perigee", "__init__.py"), Contains("pip install \"torch==2.") &&
                                                     Contains(".*\" installs it") &&
                                                     !Contains("perigee-libtorch"));
  CHECK_THAT(error_in("archive", "bin/perigee-libtorch"), Contains("perigee-libtorch links"));
  CHECK_THAT(error_in("tree/build", ""), Contains("scripts/setup of the source tree"));
}

TEST_CASE(
    "scripts/libtorch links the LibTorch that it is given or finds, of the right version only") {
  const Folder folder;
  write_torch(folder, "other", 12);
  write_torch(folder, "libtorch", 11);  // in HOME
  CHECK_THAT(provide(folder, "").err, Contains("the folder in which torch/ is made"));
  CHECK_THAT(provide(folder, "--coda").err, Contains("--coda"));
  const auto wrong = provide(folder, folder / "to", folder / "other");
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, Contains("must hold LibTorch 2.11.0") && Contains("is 2.12.0"));
  const auto found = provide(folder, folder / "to");
  INFO(found.err);
  CHECK(found.status == 0);
  CHECK(fs::equivalent(folder / "to/torch", folder / "libtorch"));
  CHECK_THAT(provide(folder, folder / "to").out, Contains("present"));
  // Another version that Perigee can be built with.
  write_torch(folder, "newer", 15);
  CHECK(provide(folder, folder / "at", folder / "newer", "2.15").status == 0);
  CHECK(fs::equivalent(folder / "at/torch", folder / "newer"));
  CHECK_THAT(provide(folder, folder / "at", folder / "other", "2.12").err,
             Contains("PERIGEE_LIBTORCH must be 2.11 or 2.15, but is \"2.12\""));
  // Without one, and without pip.
  fs::remove_all(folder / "libtorch");
  const auto none = provide(folder, folder / "to");
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Contains("install python3-venv") && Contains("PERIGEE_TORCH"));
}

TEST_CASE("scripts/libtorch fetches with the pip of an environment where Python has none") {
  const Folder folder;
  fs::create_directories(folder / "bin");
  // Python without pip: `-m venv` makes an environment, whose pip writes its arguments and fails.
  folder.write("bin/python3", R"sh(#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0.made" "$3/bin/python3" ;;
  *) exit 1 ;;
esac
)sh");
  folder.write("bin/python3.made", "#!/bin/sh\necho \"$@\" > $HOME/arguments\nexit 9\n");
  folder.write("bin/python", "#!/bin/sh\nexit 1\n");
  for (const auto* name : {"bin/python3", "bin/python3.made", "bin/python"}) {
    fs::permissions(folder / name, fs::perms::owner_all);
  }
  How how;
  how.environment = {{"PERIGEE_TORCH", ""},
                     {"HOME", folder.path()},
                     {"VIRTUAL_ENV", ""},
                     {"CONDA_PREFIX", ""},
                     {"PATH", folder / "bin:" + std::getenv("PATH")}};
  const auto ran = Process({"/bin/bash", "scripts/libtorch", folder / "to"}, how).wait();
  if (ran.out.find("using ") != std::string::npos) return;  // this machine has it in a known place
  CHECK(ran.status == 9);
  CHECK_THAT(read(folder / "arguments"),
             Contains("-m pip download ") && Contains("scripts/libtorch-2.11.txt"));
}

TEST_CASE("a package for another processor or a later C library says so") {
  const Folder folder;
  // As scripts/package lays out an archive, and the wheel's module.
  for (const auto* name : {"package/bin", "package/share/perigee/libtorch", "package/lib",
                           "perigee/bin", "perigee/share/perigee/libtorch"}) {
    fs::create_directories(folder / name);
  }
  fs::copy_file("scripts/libtorch", folder / "package/bin/perigee-libtorch");
  fs::copy_file("scripts/libtorch-2.11.txt",
                folder / "package/share/perigee/libtorch/libtorch-2.11.txt");
  fs::copy_file("tools/package/perigee.py", folder / "perigee/__init__.py");
  folder.write("perigee/bin/perigee", "#!/bin/sh\necho started\n");
  fs::permissions(folder / "perigee/bin/perigee", fs::perms::owner_all);
  write_torch(folder, "torch", 11);
  const auto start = [&](const std::string& system, const std::string& line) {
    const auto text = Process({"/bin/sh", "-c", system}).wait().out;
    folder.write("package/share/perigee/libtorch/system", text);
    folder.write("perigee/share/perigee/libtorch/system", text);
    How how;
    how.folder = folder.path();
    how.environment = {{"PERIGEE_TORCH", folder / "torch"}};
    return Process({"/bin/sh", "-c", line}, how).wait();
  };
  for (const std::string line :
       {"package/bin/perigee-libtorch", "python3 -c 'import perigee; perigee.main()'"}) {
    INFO(line);
    const auto here = start("echo $(uname -m) 2.17", line);
    CHECK(here.err == "");
    CHECK(here.status == 0);
    for (const std::string system : {"echo m68k 2.17", "echo $(uname -m) 99.1"}) {
      const auto refused = start(system, line);
      CHECK(refused.status == 2);
      CHECK(is_short(refused.err));
      CHECK_THAT(refused.err, Contains("this package is for ") &&
                                  Contains(" or later, but this is ") &&
                                  Contains("from its source"));
    }
  }
}
