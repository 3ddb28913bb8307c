// scripts/setup and scripts/bundle in a copy of scripts/, with small replacements of the downloads.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
namespace fs = std::filesystem;

namespace {

// A checkout of scripts/, whose scripts/build only prints its name, and a LibTorch without code.
class Checkout {
 public:
  Checkout() {
    fs::create_directories(folder_ / "checkout");
    fs::copy("scripts", folder_ / "checkout/scripts", fs::copy_options::recursive);
    program("checkout/scripts/build", "echo built");
    write("torch/lib/libtorch_cpu.so", "");
    write("torch/include/torch/headeronly/version.h",
          "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n"
          "#define TORCH_VERSION_PATCH 0\n");
  }

  std::string operator/(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    folder_.write(name, text);
  }
  void program(const std::string& name, const std::string& body) const {
    write(name, "#!/bin/bash\n" + body + "\n");
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  // Runs a line of a shell in the folder, where `bin` comes first on the path.
  Ran shell(const std::string& line, const std::string& torch = "torch") const {
    How how;
    how.folder = folder_.path();
    how.environment = {{"PATH", folder_ / "bin:" + std::getenv("PATH")},
                       {"PERIGEE_TORCH", torch.empty() ? "" : folder_ / torch},
                       {"PERIGEE_CUDA", "off"}};
    return Process({"/bin/bash", "-c", line}, how).wait();
  }
  std::string refusal(const std::string& line, const std::string& torch = "torch") const {
    const auto ran = shell(line, torch);
    INFO(ran.out);
    CHECK(ran.status == 2);
    CHECK(is_short(ran.err));
    return ran.err;
  }

 private:
  Folder folder_;
};

// An archive as scripts/bundle writes it, with one package.
const char* const kArchive = R"sh(set -e
  mkdir -p package/DEBIAN package/usr/include archive
  echo present > package/usr/include/brought.h
  printf 'Package: brought\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: d\n' \
    > package/DEBIAN/control
  dpkg-deb --build package archive/brought.deb > /dev/null
  echo "$(dpkg --print-architecture) $(getconf GNU_LIBC_VERSION)" > archive/system
  tar -C archive -cf bundle.tar .)sh";

}  // namespace

TEST_CASE("run ends with the command that shows the run") {
  const Checkout checkout;
  checkout.program("checkout/scripts/setup", ":");
  checkout.program("checkout/build/perigee", "echo $1");
  const auto ran = checkout.shell("checkout/scripts/run");
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out,
             Contains("built\n") && Contains("\nsample\n") &&
                 EndsWith("\nrun: build/perigee watch runs/gpt shows its charts, memory and "
                          "plan on a local page\n"));
}

TEST_CASE("setup unpacks a bundle once, links LibTorch and builds") {
  const Checkout checkout;
  REQUIRE(checkout.shell(kArchive).status == 0);
  const auto first = checkout.shell("checkout/scripts/setup --bundle bundle.tar");
  INFO(first.err);
  CHECK(first.status == 0);
  CHECK_THAT(first.out, Contains("unpacking 1 packages") && Contains("built"));
  CHECK(read(checkout / "checkout/.deps/prefix/usr/include/brought.h") == "present\n");
  CHECK(fs::equivalent(checkout / "checkout/.deps/torch", checkout / "torch"));
  CHECK_FALSE(fs::exists(checkout / "checkout/.deps/bundle"));

  const auto second = checkout.shell("checkout/scripts/setup --bundle bundle.tar");
  CHECK(second.status == 0);
  CHECK_THAT(second.out, Contains("bundle: unpacked already") && !Contains("unpacking"));
  // Afterwards it requires no package of the system.
  const auto later = checkout.shell("checkout/scripts/setup", "");
  CHECK(later.status == 0);
  CHECK_THAT(later.out, Contains("packages: from the bundle") && Contains("libtorch: present"));
}

TEST_CASE("setup refuses a bundle that is invalid, for another system, or without a LibTorch") {
  const Checkout checkout;
  REQUIRE(checkout.shell(kArchive).status == 0);
  const std::string setup = "checkout/scripts/setup ";
  CHECK_THAT(checkout.refusal(setup + "--bundle"), Contains("--bundle must name an archive"));
  CHECK_THAT(checkout.refusal(setup + "--bundle /no/such"), Contains("/no/such"));
  checkout.write("text", "no archive");
  CHECK_THAT(checkout.refusal(setup + "--bundle text"), Contains("made by scripts/bundle"));
  CHECK_THAT(checkout.refusal(setup + "--bundel text"), Contains("--bundel"));
  for (const std::string system : {"m68k glibc 2.0", "$(dpkg --print-architecture) glibc 99.1"}) {
    INFO(system);
    REQUIRE(checkout
                .shell("echo \"" + system +
                       "\" > archive/system; "
                       "tar -C archive -cf other.tar .")
                .status == 0);
    CHECK_THAT(checkout.refusal(setup + "--bundle other.tar"),
               Contains("must be made for this processor"));
  }
  CHECK_THAT(checkout.refusal(setup + "--bundle bundle.tar", "archive"),
             Contains("PERIGEE_TORCH must hold LibTorch 2.11.0"));
  CHECK_FALSE(fs::exists(checkout / "checkout/build"));
}

TEST_CASE("a bundle has all packages beside a compiler and LibTorch, in at most 64 MiB") {
  const Checkout checkout;
  // Every package needs itself and libcommon; a compiler's libraries are at hand.
  checkout.program("bin/apt-get", R"sh(
    case "$*" in
      *" install "*)
        for word; do
          if [ "$seen" ]; then echo "'http://x/y' ${word}_1_all.deb 10 SHA"; fi
          if [ "$word" = install ]; then seen=yes; fi
        done
        echo "'http://x/y' libcommon_1_all.deb 10 SHA" ;;
      download*)
        shift 2
        for word; do truncate -s "${BYTES:-10}" "$word.deb"; done ;;
    esac)sh");
  const auto ran = checkout.shell("checkout/scripts/bundle made.tar && tar -tf made.tar");
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Contains("./system") && Contains("./libluajit-5.1-dev.deb") &&
                          Contains("./ninja-build.deb") && !Contains("libcommon") &&
                          !Contains("g++") && !Contains("clang-format"));
  const auto large = checkout.shell("BYTES=10M checkout/scripts/bundle large.tar");
  CHECK(large.status == 1);
  CHECK_THAT(large.err, Contains("must stay below 67108864 bytes"));
  CHECK_FALSE(fs::exists(checkout / "large.tar"));
}

TEST_CASE("setup installs the packages of the command, and with --test also those of tests") {
  const Checkout checkout;
  checkout.program("bin/dpkg-query", "exit 1");  // nothing is installed
  checkout.program("bin/id", "echo 0");
  checkout.program("bin/apt-get", R"sh(case "$*" in install*) echo "$*" >> installed ;; esac)sh");
  checkout.program("bin/env", R"sh(shift; exec "$@")sh");
  const auto installed = [&](const std::string& option) {
    fs::remove(checkout / "checkout/installed");
    const auto ran = checkout.shell("checkout/scripts/setup " + option);
    INFO(ran.out << ran.err);
    REQUIRE(ran.status == 0);
    return read(checkout / "checkout/installed");
  };
  CHECK_THAT(installed(""), Contains("install") && Contains(" libluajit-5.1-dev ") &&
                                !Contains("catch2") && !Contains("clang-format") &&
                                !Contains("chromium"));
  CHECK_THAT(installed("--test"), Contains(" libluajit-5.1-dev ") && Contains(" catch2 ") &&
                                      Contains(" clang-format-14") && !Contains("debootstrap"));
  CHECK_THAT(installed("--fuzz"),
             Contains(" clang") && !Contains("catch2") && !Contains("--no-install-recommends"));
}

TEST_CASE("setup shows on a terminal, and nowhere else, that packages are installed") {
  const Checkout checkout;
  checkout.program("bin/dpkg-query", "exit 1");
  checkout.program("bin/id", "echo 0");
  checkout.program("bin/apt-get", "echo \"apt: $1\"");
  checkout.program("bin/env", R"sh(shift; exec "$@")sh");
  const auto file = checkout.shell("checkout/scripts/setup");
  CHECK(file.status == 0);
  CHECK_THAT(file.out, !Contains("apt: "));
  const auto terminal = checkout.shell("script -qec checkout/scripts/setup /dev/null");
  INFO(terminal.out << terminal.err);
  CHECK(terminal.status == 0);
  CHECK_THAT(terminal.out, Contains("apt: update") && Contains("apt: install"));
}

TEST_CASE("setup leaves the CUDA part out where no GPU is, unless it is asked for") {
  if (fs::exists("/proc/driver/nvidia/version")) return;
  const Checkout checkout;
  checkout.program("bin/dpkg-query", "echo installed");
  checkout.program("bin/nvcc", "echo release 13.0");
  checkout.program("checkout/scripts/libtorch", "echo libtorch \"$@\"");
  const auto setup = [&](const std::string& cuda) {
    const auto ran = checkout.shell("PERIGEE_CUDA=" + cuda + " checkout/scripts/setup");
    INFO(ran.err);
    CHECK(ran.status == 0);
    return ran.out;
  };
  CHECK_THAT(setup(""), Contains("no GPU, left out") && Contains("libtorch .deps\n"));
  CHECK_THAT(setup("on"), Contains("libtorch .deps --cuda\n"));
  CHECK_THAT(setup("off"), Contains("CUDA: left out") && Contains("libtorch .deps\n"));
}
